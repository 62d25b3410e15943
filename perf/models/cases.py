"""The suite's models: the scale of their data, batch sizes here, and what DeepRec published for them (its SmartStage page; steps per second)."""

from typing import NamedTuple

SCALE = 0.01  # of the data sets' cardinalities above 100: tables have a hundredth of their rows


class Case(NamedTuple):
    keep: float  # the share of rows without a click that is trained with
    batch: int  # DeepRec's, divided by 4 to 8 for the three largest, so that a step stays below about 100 ms on two cores
    cpu: float | None  # SmartStage / without, on a CPU; published for DLRM only
    gpu: float  # the same on an A100
    on_cpu: float  # on an A100, with the stage on the CPU


CASES = {
    "dlrm": Case(1.0, 512, 212 / 201, 67.7 / 91.7, 188.1 / 91.7),
    "deepfm": Case(1.0, 512, None, 62.1 / 74.7, 93.1 / 74.7),
    "dssm": Case(0.1, 1024, None, 83.7 / 92.5, 101.4 / 92.5),
    "din": Case(0.1, 256, None, 132.6 / 137.6, 165.1 / 137.6),
    "dien": Case(0.1, 64, None, 16.92 / 17.17, 17.26 / 17.17),
}
