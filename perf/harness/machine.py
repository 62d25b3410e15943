"""What a reader of a figure must know about the machine."""

import datetime
import os
import platform
import re
import subprocess
import time
from pathlib import Path


def _say(*command: str, cwd: Path | None = None) -> str:
    try:
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found.group(1) if found else platform.processor()


def _compiler(build: Path) -> str:
    try:
        found = re.search(r"^CMAKE_CXX_COMPILER:[^=]*=(.+)$", (build / "CMakeCache.txt").read_text(), re.M)
    except OSError:
        found = None
    return _say(found.group(1), "--version").partition("\n")[0] if found else ""


def busy(seconds: float = 0.2) -> float:
    """The share of the cores that is busy. Called while all runners are stopped, so it measures other programs."""

    def ticks() -> tuple[int, int]:
        fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # all; idle and waiting for a disk

    all_before, idle_before = ticks()
    time.sleep(seconds)
    all_after, idle_after = ticks()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def commit(source: Path) -> str:
    found = _say("git", "rev-parse", "HEAD", cwd=source)
    return found + (" and changes" if found and _say("git", "status", "--porcelain", cwd=source) else "")


def source_of(build: Path) -> Path:
    """The source tree of a build tree."""
    return Path(re.search(r"^CMAKE_HOME_DIRECTORY:[^=]*=(.+)$", (build / "CMakeCache.txt").read_text(), re.M).group(1))


def header(build: Path, source: Path, workers: int, rounds: int) -> dict:
    return {
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "compiler": _compiler(build),
        "commit": commit(source),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "busy_before": round(busy(1.0), 2),
        "workers": workers,
        "rounds": rounds,
    }
