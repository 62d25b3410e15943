#!/usr/bin/env python3
"""docs/limits.md agrees with the code.

The last column of each row is `FILE: CODE`. A CODE such as `kMaxLanes` or `kMaxLanes - 1` is a constant that a file of that name
defines, and has the number of the row. Any other CODE stands in a file of that name; where it has numbers, one is the row's.
And every constant that is named like a limit (kMax..., kMost...) is on the page, or is listed here with the reason why it is none;
each that is listed here is there."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/limits.md"
ROW = re.compile(r"^\| (.+?) \| ([\d,]+) \| .+ \| `([\w.]+): (.+)` \|$", re.M)
CONSTANT = re.compile(r"constexpr [^;()]*?\b(k(?:Max|Most)\w*)\b *[={]")
NOT_LIMITS = {
    "kMaxFiles": "a cache of file names, which starts anew when it is full",
    "kMostAccesses": "an Operator with more is pushed like any op",
    "kMostDoublings": "part of the pause after ignored errors, which is on the page",
    "kMostFailures": "how long a comparison of schedules goes on while steps fail",
    "kMostKept": "how much freed memory the drop-in for MXNet has malloc keep",
    "kMostInSigns": "a threshold of the sign test",
    "kMostNodes": "what a node that costs nothing counts as",
    "kMostLooksBack": "how far a blocked chain looks for what its members wait for",
    "kMostPins": "an assertion",
}


NUMBER = re.compile(r"\b\d+ << \d+|\b(?:0x[\da-f]+|\d+(?:e\d+)?)")


def value(text: str) -> float:
    """What an initializer such as `size_t{1} << 20` is worth; nan for one that this script does not understand."""
    text = re.sub(r"\w+\{(\w+)\}", r"\1", text)
    return eval(text) if re.fullmatch(r"[\dxa-fe.+*()< -]+", text) else float("nan")


def constant(name: str, text: str) -> float:
    found = re.search(rf"\b{name}\b *(?:= *([^;,]+)[;,]|\{{([^}}]+)\}})", text)
    return value(found[1] or found[2]) if found else float("nan")


def problem(most: float, file: str, code: str, texts: dict[Path, str]) -> str | None:
    """What is wrong with a row of the page."""
    inside = [text for path, text in texts.items() if path.name == file]
    if named := re.fullmatch(r"(k\w+)((?: - \d+)?)", code):
        found = [constant(named[1], text) + value(named[2] or "0") for text in inside]
        return None if most in found else f"{code} in {file} is {', '.join(f'{n:.0f}' for n in found if n == n) or 'not there'}"
    if not any(code in text for text in inside):
        return f"no {file} has '{code}' any more"
    numbers = [value(n) for n in NUMBER.findall(code)]
    return None if most in numbers or not numbers else f"'{code}' has another number"


def main() -> int:
    sources = [p for folder in ("include", "src", "python/src", "python/engine", "python/mxnet") for p in (ROOT / folder).rglob("*.*")
               if p.suffix in {".h", ".cc", ".py"}]  # fmt: skip
    texts = {p: p.read_text(encoding="utf-8") for p in sources}
    page = PAGE.read_text(encoding="utf-8")
    rows = ROW.findall(page)
    written = len(re.findall(r"^\| (?!limit )", page, re.M))
    wrong = [] if written == len(rows) > 0 else [f"{PAGE.name}: {len(rows)} of {written} rows are understood"]
    for what, most, file, code in rows:
        if said := problem(float(most.replace(",", "")), file, code, texts):
            wrong.append(f"{what}: the page says {most}, but {said}")
    constants = {(path, name) for path, text in texts.items() for name in CONSTANT.findall(text)}
    listed = {code.split(" ")[0] for *_, code in rows}
    for path, name in sorted(constants):
        if name not in listed and name not in NOT_LIMITS:
            wrong.append(f"{path.relative_to(ROOT)}: {name} is not on {PAGE.relative_to(ROOT)}")
    for name in sorted(NOT_LIMITS.keys() - {name for _, name in constants}):
        wrong.append(f"NOT_LIMITS has {name}, which no source defines any more")
    for line in wrong:
        print(line)
    print(f"limits: {len(rows)} rows, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
