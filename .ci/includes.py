#!/usr/bin/env python3
"""The dependency rule: who may include what.

src/bulk, src/stage, src/costmodel and python include the public headers and their own folder; src/engine likewise, and
so none of the others; a public header includes public headers. Prints each violation."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = ROOT / "include"
FOLDERS = ["include/engine", "src/engine", "src/bulk", "src/stage", "src/costmodel", "python"]
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


def violation(folder: Path, source: Path, mark: str, name: str) -> str | None:
    """Why `source`, a file of `folder`, may not include `name`; None if it may."""
    if (PUBLIC / name).is_file():
        return None
    inside = [base for base in (source.parent, folder, *folder.glob("*/")) if (base / name).is_file()]
    for base in inside:
        if (base / name).resolve().is_relative_to(folder):
            return None
    if inside:
        return "leaves its folder"
    elsewhere = [f for f in FOLDERS if (ROOT / f / name).is_file()] + [f for f in ("src", ".") if (ROOT / f / name).is_file()]
    if elsewhere:
        return f"is private to {elsewhere[0]}"
    return "is found nowhere in its folder" if mark == '"' else None


def main() -> int:
    bad = count = 0
    for folder in (ROOT / f for f in FOLDERS):
        for source in sorted(p for p in folder.rglob("*") if p.suffix in {".h", ".cc", ".cu", ".cuh", ".c"}):
            count += 1
            for mark, name in INCLUDE.findall(source.read_text(encoding="utf-8")):
                why = violation(folder, source, mark, name)
                if why:
                    bad += 1
                    print(f"{source.relative_to(ROOT)}: {name} {why}")
    print(f"{count} files, {bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
