"""Verdicts and comparisons of the GPU suite (perf/gpu/judge.py)."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "perf" / "gpu"
sys.path.insert(0, str(GPU))
import judge  # noqa: E402
import report  # noqa: E402


def line(ours, peer, kind="ratio", value=1.05):
    return {"row": 2, "case": "c", "metric": "time", "unit": "ns", "peer_name": "by hand" if peer else None,
            "limit": {"kind": kind, "value": value}, "ours": ours, "peer": peer}  # fmt: skip


@pytest.mark.parametrize(
    "ours, verdict",
    [
        ([100, 101, 102, 101, 100], "kept"),
        ([120, 121, 122, 121, 120], "missed"),
        ([90, 130, 104, 108, 100], "ambiguous"),
    ],
)
def test_a_ratio_is_judged_only_beyond_its_interval(ours, verdict):
    row = judge.row(line(ours, [100] * 5), judged=True)
    assert row["verdict"] == verdict
    assert judge.row(line(ours, [100] * 5), judged=False)["verdict"] == "not judged"


def test_differences_values_and_lower_bounds():
    assert judge.row(line([350] * 5, [100] * 5, "difference", 300), True)["verdict"] == "kept"
    assert judge.row(line([450] * 5, [100] * 5, "difference", 300), True)["verdict"] == "missed"
    assert judge.row(line([0.03] * 5, None, "value", 0.02), True)["verdict"] == "missed"
    assert judge.row(line([0.88] * 5, [0.9] * 5, "at least", 0.97), True)["verdict"] == "kept"  # a share of the other's
    assert judge.row(line([0.86] * 5, [0.9] * 5, "at least", 0.97), True)["verdict"] == "missed"


def result(ours, got=67, judged=True):
    counter = {"row": 5, "case": "bulks", "about": "", "counter": "records", "got": got, "want": 67}
    return {"header": {"device": "cuda", "gpu": "g", "cpu": "c", "judged": judged},
            "rows": [judge.row(line(ours, [100] * 5), judged)], "counters": [judge.counter(counter)]}  # fmt: skip


def test_compare_names_what_got_slower_and_counters_that_changed():
    old = result([100, 101, 102, 101, 100])
    assert judge.compare(old, copy.deepcopy(old)) == ([], [])
    bad, _ = judge.compare(old, result([110, 111, 112, 111, 110]))
    assert len(bad) == 1 and bad[0].startswith("slower: row 2, c, time")
    assert judge.compare(old, result([90, 111, 101, 112, 95]))[0] == [], "within the spread"
    bad, _ = judge.compare(old, result([100] * 5, got=68))
    assert bad == ["counter changed: bulks, records: 67 -> 68"]
    gone = result([100] * 5)
    gone["counters"] = []
    assert judge.compare(old, gone)[0] == ["counter gone: bulks, records"]


def test_times_of_the_software_device_are_not_compared():
    bad, notes = judge.compare(result([100] * 5, judged=False), result([200] * 5, judged=False))
    assert bad == [] and any("not compared" in n for n in notes)


def test_a_wrong_counter_fails_the_run():
    assert judge.failures(result([100] * 5, got=66)) == ["counter: bulks, records: 66, must be 67"]
    assert judge.failures(result([100] * 5)) == []


@pytest.mark.parametrize(
    "ours, status, says",
    [([100, 101, 102, 101, 100], 0, "nothing got slower"), ([110, 111, 112, 111, 110], 1, "slower: row 2")],
)
def test_two_files_are_compared_by_the_command(tmp_path, ours, status, says):
    for name, figures in ("old", [100, 101, 102, 101, 100]), ("new", ours):
        (tmp_path / f"{name}.json").write_text(json.dumps(result(figures)))
    done = subprocess.run([sys.executable, GPU / "suite.py", "gpu", "--compare", tmp_path / "old.json", tmp_path / "new.json"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == status and says in done.stdout, done


def test_the_report_shows_ratios_gaps_and_every_figure():
    told = result([100, 101, 102, 101, 100])
    told["header"] |= {"date": "2026-01-02", "commit": "abc"}
    told |= {"calibration": [{"name": "record", "unit": "ns", "ours": 7, "spread": [6, 8]}], "absent": [{"row": 13, "why": "no <NCCL>"}],
             "timelines": [{"row": 12, "name": "step", "spans": [[0, "a & b", 0, 40], [0, "c", 60, 100], [1, "c", 0, 100]]}]}  # fmt: skip
    page = report.html(told)
    for part in (
        "2026-01-02",
        "abc",
        "kept",
        "at most 1.05 x",
        "records",
        "no &lt;NCCL&gt;",
        "step",
        "a &amp; b",
        "lane 0 80.0%",
        "lane 1 100.0%",
    ):
        assert part in page, part
    assert page.count("<svg") == 2 and page.count("<rect") == 3 and page.count("<circle") == 1
    assert "nobody judges them" not in page and "nobody judges them" in report.html(
        told | {"header": told["header"] | {"judged": False}}
    )
