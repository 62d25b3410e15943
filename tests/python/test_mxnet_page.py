"""The figures of docs/mxnet.md (perf/mxnet/page.py): they are those of a results file of ./run perf mxnet."""

import importlib.util
import pathlib

import pytest

_PATH = pathlib.Path(__file__).resolve().parent.parent.parent / "perf/mxnet/page.py"
_SPEC = importlib.util.spec_from_file_location("page", _PATH)
page = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(page)

HEADER = {"commit": "0123456789 and changes", "cpu": "a processor", "cores": 2, "date": "2026-11-23T06:08:07+00:00",
          "busy_before": 0.02}  # fmt: skip
OPS = {"group": "engine ops", "case": "d_dag", "goal": 5.0, "ratio": 4.4, "ratio_ci": [4.1, 4.8],
       "verdict": "reached but for libmxnet itself", "floor": 76.2, "net": [5.1, 6.3]}  # fmt: skip
WIDE = {"group": "wide", "case": "wide_forward", "goal": 1.3, "ratio": 1.2, "ratio_ci": [1.1, 1.25], "verdict": "undecided",
        "of_bound": [0.91, 0.99], "allowed": 1.4567}  # fmt: skip
BOUND = WIDE | {"case": "wide_static", "allowed_us": 4321.4}
del BOUND["allowed"]
BELOW = {"group": "programs", "case": "mlp_eager", "goal": 0.98, "ratio": 0.9, "ratio_ci": [0.88, 0.92], "verdict": "BELOW"}
SKIP = {"group": "programs", "case": "feed_images", "goal": 0.98, "skip": "no images"}
EMPTY = "before\n<!-- mxnet:speed:begin -->\nold\n<!-- mxnet:speed:end -->\nbehind\n"


def test_the_figures_of_a_file_take_the_place_of_the_old_ones():
    said = page.with_figures(EMPTY, {"header": HEADER, "rows": [OPS, WIDE, BOUND, BELOW, SKIP]}, "mxnet-2026-11-23.json")
    assert said.startswith("before\n") and said.endswith("behind\n") and "old" not in said
    assert "0 of 5 cases reach their goal, and 1 what stands in the last column, at commit 0123456 with changes, on a processor with 2 cores, 2026-11-23" in said
    assert "[rows](../perf/results/mxnet-2026-11-23.json)" in said
    assert "| engine ops | `d_dag` | 4.40 [4.10, 4.80] | 5 | reached but for libmxnet itself | [5.1, 6.3] without libmxnet's own" in said
    assert "| undecided | [0.91, 0.99] of what two cores allow, which is 1.46 times one thread |" in said
    assert "| undecided | [0.91, 0.99] of what its ops allow, which is 4321 us a step |" in said
    assert "| programs | `mlp_eager` | 0.90 [0.88, 0.92] | 0.98 | BELOW |  |" in said
    assert "| programs | `feed_images` |  | 0.98 | left out | no images |" in said
    assert page.with_figures(said, {"header": HEADER, "rows": []}, "other.json").count("mxnet:speed:begin") == 1


def test_the_page_says_where_the_time_of_two_workers_goes():
    spent = {"work_us": 600.0, "longer_us": 200.0, "ready_us": 150.0, "nothing_us": 50.0}
    said = page.with_figures(EMPTY, {"header": HEADER, "rows": [OPS, BOUND | spent]}, "x.json")
    assert "| `wide_static` | 60% | 20% | 15% | 5% |" in said
    assert "nothing is ready" not in page.with_figures(EMPTY, {"header": HEADER, "rows": [OPS, BOUND]}, "x.json")


def test_a_page_without_a_place_is_refused():
    with pytest.raises(SystemExit):
        page.with_figures("nothing", {"header": HEADER, "rows": []}, "x.json")


def test_the_page_has_its_place():
    assert page.PAGE.read_text().count("<!-- mxnet:speed:begin -->") == page.PAGE.read_text().count("<!-- mxnet:speed:end -->") == 1
