#!/usr/bin/env python3
"""The table "Five practice changes" of CONTRIBUTING.md says what its patches do.

Each patch of tests/practice still applies to this tree, has a row of the table, and changes as many files as the row says. Not
counted are tests, and files that the patch adds; each of the others is named in the row."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| \[[^\]]+\]\(tests/practice/(\w+)\.patch\).*? \| \d+ \| (\d+) \| (.+) \|$", re.M)


def apply(option: str, patch: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "apply", option, str(patch)], cwd=ROOT, capture_output=True, text=True, check=False)


def changed(patch: Path) -> set[str]:
    """The files that the patch changes; neither tests, nor files that it adds."""
    added = set(re.findall(r"^ create mode \d+ (.+)$", apply("--summary", patch).stdout, re.M))
    files = {line.split("\t")[2] for line in apply("--numstat", patch).stdout.splitlines()}
    return {file for file in files - added if not file.startswith("tests/")}


def wrong(patch: Path, rows: dict[str, tuple[int, str]]) -> list[str]:
    if patch.stem not in rows:
        return ["has no row in CONTRIBUTING.md"]
    check = apply("--check", patch)
    if check.returncode:
        return [f"does not apply any more: {check.stderr.strip()}"]
    files = changed(patch)
    count, which = rows[patch.stem]
    said = [] if len(files) == count else [f"changes {len(files)} files ({', '.join(sorted(files))}); its row says {count}"]
    return said + [f"changes {file}, which its row does not name" for file in sorted(files) if Path(file).name not in which]


def main() -> int:
    rows = {name: (int(count), which) for name, count, which in ROW.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))}
    patches = sorted((ROOT / "tests/practice").glob("*.patch"))
    bad = [f"{patch.name}: {what}" for patch in patches for what in wrong(patch, rows)]
    bad += [f"CONTRIBUTING.md names {name}.patch, which is not there" for name in sorted(rows.keys() - {p.stem for p in patches})]
    for line in bad:
        print(line)
    print(f"{len(patches)} patches, {len(bad)} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
