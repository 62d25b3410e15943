#!/usr/bin/env python3
"""Writes out what is said once, in a table of a public header, wherever text has to say it again.

A table is a macro with a row each, as ENGINE_ERRORS in include/engine/error.h. C++ uses it as it is; the C API is checked
against it where it is compiled. The Python modules and the pages are text: between a line with `NAME: written by
.ci/tables.py` and a line with `/NAME` they hold what this program makes of the table.

    tables.py            fails, and says where, if a text is not what its table says
    tables.py --write    writes the texts

Tables of measured figures are written from committed results in the same way (peers.py, published.py, whole_steps.py).
"""

import re
import sys
import textwrap
from pathlib import Path

import peers
import published
import results
import whole_steps

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 118
Row = list[str]


def rows(header: str, table: str) -> list[Row]:
    """The rows of the macro `table`, each a list of its arguments; texts come without their quotes."""
    source = (ROOT / header).read_text(encoding="utf-8")
    body = re.search(rf"#define {table}\(X\)((?:.*\\\n)*.*\n)", source)
    assert body, f"{header} has no {table}"
    text, found, at = body[1].replace("\\\n", "\n"), [], 0
    while start := re.compile(r"\bX\(|\b(ENGINE_\w+)\(X\)").search(text, at):
        if start[1]:
            found += rows(header, start[1])
            at = start.end()
            continue
        arguments, at = [""], start.end()
        depth = 1
        while depth:
            piece = re.compile(r'"(?:[^"\\]|\\.)*"|.', re.S).match(text, at)
            assert piece, f"{table}: a row does not end"
            at = piece.end()
            depth += (piece[0] in "({") - (piece[0] in ")}")
            if piece[0] == "," and depth == 1:
                arguments.append("")
            elif depth:
                arguments[-1] += piece[0]
        found.append([plain(a) for a in arguments])
    return found


def plain(argument: str) -> str:
    """A text without its quotes, its parts joined; anything else without space around it."""
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"', argument)
    return "".join(parts).replace('\\"', '"') if parts else " ".join(argument.split())


def code(text: str) -> str:
    """In a page one backquote marks code, where docstrings have two."""
    return text.replace("``", "`")


def page_table(head: Row, lines: list[Row]) -> str:
    rule = "|" + "---|" * len(head)
    texts = ["| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in (head, *lines)]
    return "\n".join([texts[0], rule, *texts[1:], ""])


# --- errors


def error_rows() -> list[Row]:
    return rows("include/engine/error.h", "ENGINE_ERRORS")


def error_classes() -> str:
    """The classes of engine.errors. OpError is written by hand: it has fields."""
    out = ""
    for name, _, bases, text in error_rows():
        if name != "OpError":
            filled = textwrap.fill(f'"""{text}"""', WIDTH - 4, break_on_hyphens=False)
            out += f"\n\nclass {name}({bases}):\n{textwrap.indent(filled, '    ')}\n"
    names = ["Error", *sorted(name for name, *_ in error_rows())]
    listed = textwrap.fill(", ".join(f'"{n}"' for n in names) + ",", WIDTH - 4)
    return f"{out.lstrip()}\n\n__all__ = [\n{textwrap.indent(listed, '    ')}\n]  # fmt: skip\n"


def error_page() -> str:
    lines = [[f"`{name}`", f"`ENGINE_E_{status}`", code(text)] for name, status, _, text in error_rows()]
    return page_table(["type", "in C", "means"], lines)


# --- options

# What a kind's default is in: in C++ and C the unit is in the type, in Python all times are seconds.
SECONDS = {"Micros": 1e-6, "Millis": 1e-3}


def option_rows() -> list[Row]:
    return rows("include/engine/options.h", "ENGINE_OPTIONS")


def allowed_text(allowed: str) -> str:
    """"-1 to 4096" of "Range(-1, 4096)"; "" where any is."""
    bounds = re.findall(r"-?\d+", allowed)
    return " to ".join(bounds) if len(bounds) == 2 else f"{bounds[0]} and more" if bounds else ""


def default_text(kind: str, initial: str) -> str:
    """As Python says it."""
    if kind in SECONDS:
        return f"{int(initial) * SECONDS[kind]:.6f}".rstrip("0").rstrip(".")
    if kind == "PolicyKind":
        return {"Policy::kThreaded": "threaded"}[initial]
    return initial


def init_function() -> str:
    """engine.init. Its annotations are those of the extension (python/src/options.h)."""
    types = dict(re.findall(r'#define ENGINE_PY_(\w+) "(.*)"', (ROOT / "python/src/options.h").read_text()))
    keywords, said = "", ""
    for kind, name, initial, allowed, variable, text in option_rows() + rows("python/src/options.h", "ENGINE_PY_OPTIONS"):
        keywords += f"    {name}: {types[kind]} | None = None,\n"
        default = default_text(kind, initial) + (" s" if kind in SECONDS else "")
        otherwise = f", or what {variable} says" if variable else ""
        line = f"{name}: {text}." + (f" Default: {default}{otherwise}." if default else "")
        said += textwrap.fill(line, WIDTH - 4, initial_indent="    ", subsequent_indent="        ") + "\n"
    return f'''def init(
    *,
{keywords}) -> None:
    """Makes the default engine with these options, before anything has used it; UsageError afterwards.

    None leaves an option at its default. Times are seconds. A pool is {{name: threads}}, or {{name: dict(threads=2,
    cpus=[0, 1], on_start=hook, on_end=hook)}}; a device is "cuda:0" or "software"; policies and their parameters are
    listed by engine.policies().

{said}    """
    _core.init(**{{name: value for name, value in locals().items() if value is not None}})
'''


def option_page() -> str:
    def cell(text: str) -> str:
        return f"`{text}`" if text else ""

    lines = []
    for kind, name, initial, allowed, variable, text in option_rows():
        unit = {"Micros": " µs", "Millis": " ms"}.get(kind, "")
        default = cell(default_text("", initial.replace("Policy::kThreaded", "threaded"))) + unit
        lines.append([cell(name), default, allowed_text(allowed), cell(variable), code(text)])
    return page_table(["option", "default", "allowed", "environment", "is"], lines)


# --- options of stages


def stage_option_rows() -> list[Row]:
    return rows("include/engine/stage_options.h", "ENGINE_STAGE_OPTIONS")


def stage_ranges() -> str:
    """What Python's staged checks of its numbers. Which lanes and devices there are, only the extension knows."""
    most = {"Int": 2**31 - 1, "Size": 2**63 - 1}
    lines = ""
    for kind, name, _, allowed, *_ in stage_option_rows():
        if kind in most and allowed != "Any()":
            bounds = [int(b) for b in re.findall(r"-?\d+", allowed)]
            lines += f'    "{name}": ({bounds[0]}, {bounds[1] if len(bounds) == 2 else most[kind]}),\n'
    return f"_RANGES = {{\n{lines}}}\n"


def stage_option_page() -> str:
    lines = [[f"`{name}`", code(default), code(text)] for _, name, _, _, default, text in stage_option_rows()]
    return page_table(["option", "default", "is"], lines)


# --- counters


def counter_page(table: str) -> str:
    return page_table(["counter", "counts"], [[f"`{n}`", code(t)] for n, t in rows("include/engine/stats.h", table)])


# --- measured figures


def published_table(whole: bool, prefix: str) -> str:
    name, found = results.newest("models")
    said = f"{published.said(name, found, prefix)}\n"
    return f"{said}\n{page_table(published.heads(found, whole), published.lines(found, whole))}"


def peers_table() -> str:
    return f"{peers.said()}\n\n{page_table(peers.heads(), peers.lines())}"


def steps_table(prefix: str) -> str:
    return f"{whole_steps.said(prefix)}\n\n{page_table(whole_steps.heads(), whole_steps.lines())}"


# Every text that is written: its file, the name in its marks, and what makes it.
TEXTS = [
    ("python/engine/errors.py", "errors", error_classes),
    ("docs/concepts.md", "errors", error_page),
    ("python/engine/options.py", "init", init_function),
    ("docs/reference.md", "options", option_page),
    ("python/engine/stages.py", "ranges", stage_ranges),
    ("docs/stages.md", "stage options", stage_option_page),
    ("docs/reference.md", "counters", lambda: counter_page("ENGINE_COUNTERS")),
    ("docs/reference.md", "device counters", lambda: counter_page("ENGINE_DEVICE_COUNTERS")),
    ("README.md", "peers", peers_table),
    ("README.md", "published", lambda: published_table(False, "")),
    ("docs/recommenders.md", "published", lambda: published_table(True, "../")),
    ("docs/torch.md", "whole steps", lambda: steps_table("../")),
]


def replaced(text: str, mark: str, made: str) -> str | None:
    """`text` with `made` between the marks; None where there are none."""
    parts = re.fullmatch(rf"(.*?\b{mark}: written by \.ci/tables\.py[^\n]*\n)(.*?)([^\n]*/{mark}\b.*)", text, re.S)
    return parts and parts[1] + made + parts[3]


def main() -> int:
    write = "--write" in sys.argv[1:]
    stale = 0
    for name, mark, make in TEXTS:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        new = replaced(text, mark, make())
        if new and write:
            path.write_text(new, encoding="utf-8")
        elif new != text:
            stale += 1
            print(f"{name}: {mark}: is not what the table says; `.ci/tables.py --write` writes it" if new else
                  f"{name}: {mark}: the marks are missing")  # fmt: skip
    print(f"{len(TEXTS)} texts, {stale} not as the tables say")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
