"""The committed results of ./run perf, from which tables of pages are written."""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "perf/results"


def newest(suite: str, folder: Path = FOLDER) -> tuple[str, dict]:
    """The newest file SUITE-DATE.json, and its name."""
    path = max(p for p in folder.iterdir() if re.fullmatch(rf"{suite}-[0-9-]+\.json", p.name))
    return path.name, json.loads(path.read_text(encoding="utf-8"))
