#!/usr/bin/env python3
"""The dependency rule: who may include what.

src/bulk, src/stage, src/costmodel and python include the public headers and their own folder, the first three also what
knows nothing of the engine, src/engine/base; src/engine likewise, and so none of the others; a public header includes
public headers. Inside src/engine the folders have an order, LAYERS: each
includes only itself and those before it. Prints each violation, and each file that is not on the map of its README, where
the picture and the table of src/engine/README.md must be those of the code.

    includes.py           check
    includes.py --draw    also writes what src/engine/README.md shows: the picture, and what the lines are for"""

import re
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = ROOT / "include"
ENGINE = ROOT / "src/engine"
FOLDERS = ["include/engine", "src/engine", "src/bulk", "src/stage", "src/costmodel", "python"]
LAYERS = ["base", "order", "sched", "core", "graph", "device", "comm", "c_api"]
# What the lines of src/engine are for. Each file counts in the first row that it fits; every file fits one. A backend that
# is not named here has a row of its own.
PURPOSES = {
    "memory of ops and Vars, locks, fences, what a fork needs": "base/*",
    "the dependency protocol": "order/dependency*",
    "ops, Vars, errors and kinds of ops": "order/op_record* order/op_kind* order/error* order/priority*",
    "held ops of devices": "order/op_chain* core/op_chains*",
    "traces": "*trace* core/wait_log*",
    "ready queues, parking and waking": "sched/*",
    "policies and options": "core/policy* core/options*",
    "waits, drains, back-pressure": "core/wait* core/drain* core/epochs* core/caller_pool* core/lent_roles* core/admission*",
    "pools, threads, Stop and Start, shutdown, forks":
        "core/pools* core/threads* core/slots* core/worker* core/stop* core/shutdown* core/fork* core/gate* core/hook*",
    "reports of what is stuck, and assertions": "core/watchdog* core/describe* core/asserts*",
    "push, run and settle": "core/*",
    "graphs: recording, layout, text": "graph/graph* graph/plan_layout* graph/plan_describe*",
    "plans: frames, runs, replay, teams": "graph/*",
    "plans on devices": "device/plan_*",
    "graphs of repeated bulks": "device/bulk_graphs*",
    "communicators' lanes, and their failures": "device/channel*",
    "lanes, issue, records, retirement, loss, memory": "device/*.h device/*.cc",
    "backend: CUDA": "device/cuda/*",
    "model: the software device": "device/software/*",
    "communicators": "comm/*.h comm/*.cc",
    "backend: NCCL": "comm/nccl/* comm/nccl/header/*",
    "model: loopback": "comm/loopback/*",
    "the C API": "c_api/*",
}
# A README is the map of these folders: the first cell of some row names each file, and each folder inside. Files of one stem
# count as one.
MAPS = {
    "src/engine": [f"src/engine/{name}" for name in [*LAYERS, "device/cuda", "device/software", "comm/nccl", "comm/loopback"]],
    "src/bulk": ["src/bulk"],
    "src/stage": ["src/stage"],
    "src/costmodel": ["src/costmodel"],
    "python": ["python/src", "python/engine", "python/engine/explanation", "python/engine/monitoring", "python/engine/torch",
               "python/engine/torch/adapter", "python/mxnet"],
    "tests": ["tests"],
}
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


def purpose(file: Path) -> str | None:
    """The row of PURPOSES in which a file of src/engine counts."""
    name = file.relative_to(ENGINE).as_posix()
    fits = lambda pattern: fnmatch(name, pattern) and name.count("/") == max(1, pattern.count("/"))  # noqa: E731
    backend = f"backend: {file.parent.name}" if re.fullmatch(r"(device|comm)/\w+/[^/]+", name) else None
    return next((row for row, patterns in PURPOSES.items() if any(map(fits, patterns.split()))), backend)


def table() -> str:
    """The lines of each purpose, and how many of them are code: neither blank nor a comment alone."""
    total: dict[str, list[int]] = {row: [0, 0, 0] for row in PURPOSES}
    for file in sources(ENGINE):
        lines = file.read_text(encoding="utf-8").splitlines()
        code = sum(1 for line in lines if line.strip() and not line.lstrip().startswith("//"))
        for i, n in enumerate((1, len(lines), code)):
            total.setdefault(purpose(file) or next(reversed(PURPOSES)), [0, 0, 0])[i] += n
    row = lambda what, n: f"| {what} | {n[0]} | {n[1]:,} | {n[2]:,} |"  # noqa: E731
    rows = [row(what, n) for what, n in total.items()]
    rows.append(row("all", sums(total.values())))
    # What stands in for hardware, what calls other libraries, and what other languages call.
    edge = ("model: ", "backend: ", "the C API")
    rows.append(row("all but models, backends and the C API", sums(n for what, n in total.items() if not what.startswith(edge))))
    return "\n".join(["| what for | files | lines | of them code |", "|---|---|---|---|", *rows])


def sums(counts: Iterable[list[int]]) -> list[int]:
    return [sum(n) for n in zip(*counts)]


def drawn(text: str) -> str:
    """The text of src/engine/README.md with the picture and the table between their marks."""
    for mark, content in (("layers", f"```\n{picture()}\n```"), ("lines", table())):
        begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}{content}\n{end}{rest.split(end)[1]}"
    return text


def unmapped(home: str, folders: list[str]) -> list[str]:
    """What lies in the folders, and is named in the first cell of no row of the README."""
    cells = re.findall(r"^\|([^|]*)\|", (ROOT / home / "README.md").read_text(encoding="utf-8"), re.M)
    named = {name.rstrip("/").split("/")[-1].split(".")[0] for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    found = {
        path.with_suffix("").relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).iterdir()
        if path.suffix in {".h", ".cc", ".c", ".py"} or (path.is_dir() and not path.name.startswith(("__", ".")))
    }
    return sorted(path for path in found if path.split("/")[-1] not in named)


def main() -> int:
    bad = count = 0
    for folder in (ROOT / f for f in FOLDERS):
        for source in sources(folder):
            count += 1
            if layer(source) and layer(source) not in LAYERS:
                bad += 1
                print(f"{source.relative_to(ROOT)}: lies in no folder of src/engine; there are {', '.join(LAYERS)}")
                continue
            if layer(source) and not purpose(source):
                bad += 1
                print(f"{source.relative_to(ROOT)}: fits no row of PURPOSES")
            for mark, name in INCLUDE.findall(source.read_text(encoding="utf-8")):
                why = violation(folder, source, mark, name)
                if why:
                    bad += 1
                    print(f"{source.relative_to(ROOT)}: {name} {why}")
    for home, folders in MAPS.items():
        for path in unmapped(home, folders):
            bad += 1
            print(f"{home}/README.md: no row begins with `{path.split('/')[-1]}`, for {path}")
    readme = ENGINE / "README.md"
    before = readme.read_text(encoding="utf-8")
    now = drawn(before)
    if now != before and "--draw" in sys.argv[1:]:
        readme.write_text(now, encoding="utf-8")
    elif now != before:
        bad += 1
        print("src/engine/README.md: the picture or the table of lines is not the code's; ./run check includes --draw writes both")
    print(f"{count} files, {bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
