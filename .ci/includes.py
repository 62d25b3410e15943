#!/usr/bin/env python3
"""The dependency rule: who may include what.

src/bulk, src/stage, src/costmodel and python include the public headers and their own folder, the first three also what
knows nothing of the engine, src/engine/base; src/engine likewise, and so none of the others; a public header includes
public headers. Inside src/engine the folders have an order, LAYERS: each
includes only itself and those before it. Prints each violation.

    includes.py           check
    includes.py --draw    also writes the picture that src/engine/README.md shows"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = ROOT / "include"
ENGINE = ROOT / "src/engine"
FOLDERS = ["include/engine", "src/engine", "src/bulk", "src/stage", "src/costmodel", "python"]
LAYERS = ["base", "order", "sched", "core", "graph", "device", "comm", "c_api"]
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


def layer(path: Path) -> str | None:
    """The folder of src/engine that `path` lies in; None elsewhere."""
    if not path.is_relative_to(ENGINE):
        return None
    return path.relative_to(ENGINE).parts[0]


def violation(folder: Path, source: Path, mark: str, name: str) -> str | None:
    """Why `source`, a file of `folder`, may not include `name`; None if it may."""
    if (PUBLIC / name).is_file():
        return None
    inside = [base for base in (source.parent, folder, *folder.glob("*/")) if (base / name).is_file()]
    for base in inside:
        found = (base / name).resolve()
        if not found.is_relative_to(folder):
            continue
        mine, its = layer(source), layer(found)
        if mine and LAYERS.index(its) > LAYERS.index(mine):
            return f"lies above {mine}"
        return None
    if inside:
        return "leaves its folder"
    if folder.parent.name == "src" and name.startswith("base/") and (ENGINE / name).is_file():
        return None
    elsewhere = [f for f in FOLDERS if (ROOT / f / name).is_file()] + [f for f in ("src", ".") if (ROOT / f / name).is_file()]
    if elsewhere:
        return f"is private to {elsewhere[0]}"
    return "is found nowhere in its folder" if mark == '"' else None


def sources(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in {".h", ".cc", ".cu", ".cuh", ".c"})


def picture() -> str:
    """The layers of src/engine, with files, lines, and how many includes go to each layer below."""
    lines = []
    for name in reversed(LAYERS):
        files = sources(ENGINE / name)
        count = sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files)
        uses: dict[str, int] = {}
        for file in files:
            for _, included in INCLUDE.findall(file.read_text(encoding="utf-8")):
                its = included.split("/")[0]
                if its in LAYERS and its != name:
                    uses[its] = uses.get(its, 0) + 1
        below = ", ".join(f"{its} {uses[its]}" for its in reversed(LAYERS) if its in uses)
        lines.append(f" {name:6} {len(files):3} files {count:6,} lines   {('includes ' + below) if below else ''}".rstrip())
    return "\n".join(lines)


def draw() -> None:
    """Puts the picture between the two marks in src/engine/README.md."""
    path = ENGINE / "README.md"
    text = path.read_text(encoding="utf-8")
    begin, end = "<!-- layers -->\n", "<!-- /layers -->"
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}```\n{picture()}\n```\n{end}{after}", encoding="utf-8")


def main() -> int:
    bad = count = 0
    for folder in (ROOT / f for f in FOLDERS):
        for source in sources(folder):
            count += 1
            if layer(source) and layer(source) not in LAYERS:
                bad += 1
                print(f"{source.relative_to(ROOT)}: lies in no folder of src/engine; there are {', '.join(LAYERS)}")
                continue
            for mark, name in INCLUDE.findall(source.read_text(encoding="utf-8")):
                why = violation(folder, source, mark, name)
                if why:
                    bad += 1
                    print(f"{source.relative_to(ROOT)}: {name} {why}")
    if "--draw" in sys.argv[1:]:
        draw()
    print(f"{count} files, {bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
