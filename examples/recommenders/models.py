"""The models by name, with the data set, batch size and learning rate of DeepRec's model zoo."""

from __future__ import annotations

from typing import Any, NamedTuple

from .deepfm import DeepFM
from .dien import DIEN
from .din import DIN
from .dlrm import DLRM
from .dssm import DSSM


class Model(NamedTuple):
    make: Any  # of a Dataset and of ``sparse``
    data: str
    batch: int
    rate: float


MODELS = {
    "dlrm": Model(DLRM, "criteo", 512, 0.01),
    "deepfm": Model(DeepFM, "criteo", 512, 0.001),
    "dssm": Model(DSSM, "taobao", 4096, 0.001),
    "din": Model(DIN, "amazon", 2048, 0.001),
    "dien": Model(DIEN, "amazon", 512, 0.001),
}
