"""One part as a process of its own, which ends with its time, and with the kit if that is killed."""

import ctypes
import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import judge
from parts import Part

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def _die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _items(lines: list[str], judged: bool) -> tuple[dict, list[str]]:
    """The suite's lines as lists of the result file, and what was text."""
    out: dict[str, list] = {"calibration": [], "counters": [], "rows": [], "absent": [], "timelines": []}
    text = []
    for line in lines:
        try:
            item = json.loads(line)
            kind = item.pop("type")
        except (ValueError, TypeError, AttributeError, KeyError):
            text.append(line)
            continue
        if kind == "calibration":
            median, low, high = judge.bounds(item["values"])
            out["calibration"].append({"name": item["name"], "unit": item["unit"], "ours": median, "spread": [low, high]})
        elif kind == "counter":
            out["counters"].append(judge.counter(item))
        elif kind == "row":
            out["rows"].append(judge.row(item, judged))
        elif kind == "absent":
            out["absent"].append(item)
        elif kind == "timeline":
            out["timelines"].append(item)
    return out, text


def _tests(text: list[str]) -> tuple[int, int] | None:
    """How many tests GoogleTest ran, and how many of them it skipped."""
    said = "\n".join(text)
    ran = re.search(r"^\[==========\] (\d+) tests? from \d+ test suites? ran", said, re.M)
    skipped = re.search(r"^\[  SKIPPED \] (\d+) tests?", said, re.M)
    return (int(ran[1]), int(skipped[1]) if skipped else 0) if ran else None


def environment(kit: Path, machine: dict) -> dict:
    """What a part's process finds: the kit's Python package, the NCCL that was found, and launches that do not block."""
    env = dict(os.environ)
    env.pop("CUDA_LAUNCH_BLOCKING", None)  # nothing would overlap, and a kernel that waits for the host would never end
    if "/" in machine["nccl"]:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(Path(machine["nccl"]).parent), env.get("LD_LIBRARY_PATH")]))
    env["PYTHONPATH"] = str(kit / "python")
    return env


def run(part: Part, kit: Path, machine: dict, seconds: float, judged: bool, lock: int) -> tuple[dict, dict]:
    """What became of the part, and what it gave. `lock` stays locked while a process of the part is alive."""
    where = {"bin": str(kit / "bin"), "kit": str(kit), "python": machine["python"], "sanitizer": machine["sanitizer"]}
    command = [word.format(**where) for word in part.command]
    lines: list[str] = []
    begin = time.monotonic()
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   cwd=kit, env=environment(kit, machine), start_new_session=True, pass_fds=[lock],
                                   preexec_fn=_die_with_parent)  # fmt: skip
    except OSError as error:
        return {"name": part.name, "status": "failed", "seconds": 0, "why": str(error), "text": []}, {}
    reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
    reader.start()
    cut = False
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        cut = True
        os.killpg(process.pid, signal.SIGKILL)  # also what it has started; it is not reaped yet, so the number is its own
        process.wait()
    reader.join(timeout=5)
    items, text = _items([line.rstrip("\n") for line in lines], judged)
    status, why = "passed", ""
    if cut:
        status, why = "cut", f"not over within {seconds:.0f} s"
    elif process.returncode != 0:
        code = process.returncode
        status, why = "failed", f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    elif wrong := [c for c in items["counters"] if c["verdict"] == "WRONG"]:
        status, why = "failed", f"{len(wrong)} counters are not exact"
    elif missed := [r for r in items["rows"] if r["verdict"] == "missed"]:
        status, why = "failed", f"{len(missed)} targets missed"
    elif items["absent"]:
        status, why = "absent", items["absent"][0]["why"]
    elif tests := _tests(text):
        ran, skipped = tests
        why = f"{ran} tests" + (f", {skipped} of them skipped" if skipped else "")
        status = "failed" if ran == skipped else "passed"  # nothing was tested
    elif not part.suite:
        status, why = "failed", "no test ran"
    elif text and not any(items.values()):
        why = text[-1]
    return {"name": part.name, "status": status, "seconds": round(time.monotonic() - begin, 1), "why": why,
            "text": text[-100:]}, items  # fmt: skip
