#!/usr/bin/env python3
"""Compiles and runs the C++ and Python blocks of README.md and docs/*.md.

    docs.py --build build [FILE.md ...]

- The Python blocks of a page run as one program, in order.
- A C++ block with `int main` is a program. The others of a page are one program, in order: their #include lines, then
  the rest as the body of main. They compile without warnings.
- What a page's `text` blocks show is printed: each line, in order, by one of the programs or by several; `...` in
  a line stands for anything.
- A block under `<!-- PATH -->` is that file of the repository, word for word, and is run as that file.
- A page with `<!-- needs MODULE -->` is left out, which is said, where Python has no such module.
C blocks belong to tests/c_api. Run with the built Python package on the path (see with_engine in lib.sh).
"""

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NEEDS = re.compile(r"^<!-- needs (\w+) -->$", re.M)
BLOCK = re.compile(r"^(?:<!-- ([\w./-]+) -->\n)?```(\w*)\n(.*?)^```$", re.M | re.S)
PATIENCE = 120  # seconds for one program


class Block(NamedTuple):
    file: str  # of the repository, that it shows; or none
    language: str
    text: str
    line: int  # of its first line in the page


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(m[1], m[2], m[3], text.count("\n", 0, m.start(3)) + 1) for m in BLOCK.finditer(text)]


def cpp_programs(name: str, found: list[Block]) -> list[str]:
    """The page's programs; #line directives make messages point into the page."""
    programs, includes, body = [], ["#include <cassert>"], []
    for b in found:
        if "int main(" in b.text:
            programs.append(f'#line {b.line} "{name}"\n{b.text}')
            continue
        body.append(f'#line {b.line} "{name}"')
        for line in b.text.splitlines():
            if line.startswith("#include"):
                includes.append(line)
                line = ""
            body.append(line)
    if body:
        programs.append("\n".join([*includes, "int main() {", *body, "}", ""]))
    return programs


def run(command: list[str], where: Path) -> str:
    done = subprocess.run(command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=PATIENCE)  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def run_cpp(source: str, library: Path, where: Path) -> str:
    (where / "block.cc").write_text(source, encoding="utf-8")
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{ROOT / 'include'}"]
    libraries = [f"-L{library.parent}", f"-Wl,-rpath,{library.parent}", "-lengine", "-pthread"]
    run(["g++", *flags, "block.cc", "-o", "block", *libraries], where)
    return run(["./block"], where)


def run_python(name: str, found: list[Block], where: Path) -> str:
    """As one file whose lines are the page's lines, so that tracebacks point there."""
    lines: list[str] = []
    for b in found:
        lines += [""] * (b.line - 1 - len(lines)) + b.text.splitlines()
    script = where / f"page-{Path(name).stem}.py"  # no module's name
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run([sys.executable, str(script)], where)


def missing_line(expected: list[str], outputs: list[str]) -> str | None:
    """The first expected line that no output has behind what was found there before."""
    rest = [[line.strip() for line in output.splitlines()] for output in outputs]
    for line in expected:
        pattern = re.compile(".*".join(map(re.escape, line.strip().split("..."))))
        at = [next((i for i, p in enumerate(r) if pattern.fullmatch(p)), None) for r in rest]
        if all(i is None for i in at):
            return line
        rest = [r if i is None else r[i + 1 :] for r, i in zip(rest, at)]
    return None


def check(page: Path, library: Path) -> str:
    """Runs one page. Returns what ran; raises RuntimeError."""
    name = str(page.relative_to(ROOT))
    for module in NEEDS.findall(page.read_text(encoding="utf-8")):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:  # a mere folder of that name is no package
            return f"{name}: left out, because {module} is not installed"
    found = blocks(page)
    for b in found:
        if b.file and (ROOT / b.file).read_text(encoding="utf-8") != b.text:
            raise RuntimeError(f"{name}:{b.line}: is not {b.file} word for word")
    cpp = cpp_programs(name, [b for b in found if b.language == "cpp"])
    python = [b for b in found if b.language == "python"]
    outputs: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        for source in cpp:
            outputs.append(run_cpp(source, library, where))
        if python:
            outputs.append(run_python(name, python, where))
    expected = [line for b in found if b.language == "text" for line in b.text.splitlines() if line.strip()]
    line = missing_line(expected, outputs)
    if line is not None:
        raise RuntimeError(f"{name}: '{line}' is shown, but printed was:\n{''.join(outputs)}")
    unknown = {b.language for b in found} - {"cpp", "python", "text", "sh", "c", "cmake", "mermaid", ""}
    if unknown:
        raise RuntimeError(f"{name}: blocks in {', '.join(sorted(unknown))} are not checked by anything")
    return f"{name}: {len(cpp)} C++ programs, {len(python)} Python blocks, {len(expected)} lines of output"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("pages", nargs="*", type=Path)
    args = parser.parse_args()
    library = next(iter(sorted(args.build.resolve().rglob("libengine.so"))), None)
    if library is None or shutil.which("g++") is None:
        print("docs: needs g++ and a build with libengine.so")
        return 1
    pages = [p.resolve() for p in args.pages] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    failed = 0
    for page in pages:
        try:
            print(check(page, library))
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"FAILED {error}")
    print(f"{len(pages)} pages, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
