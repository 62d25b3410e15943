"""The record of MXNet's own tests: a line of JSON for each file and run on our engine, and its sum in docs/mxnet.md.

compare.py adds a line when a run of a file has ended, and only for what ran: outcomes that it finds in its folder were recorded
when they were made. So three runs of all files may come together over many days and commits; each line says which commit it
speaks for. Lines are never changed, and a run that lost a test stays.
"""

import collections
import fnmatch
import json
import pathlib
import re
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
LINES = HERE / "record.jsonl"
PAGE = ROOT / "docs/mxnet.md"
BUILT_FROM = ("CMakeLists.txt", "cmake", "include", "src", "python")
WANTED = 3  # runs of each file


def commit() -> str:
    """The last commit that changed what the engine is built from, with a plus if that was changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False).stdout.strip()

    last = git("log", "-1", "--format=%h", "--abbrev=7", "--", *BUILT_FROM) or "unknown"
    return last + ("+" if git("status", "--porcelain", "--", *BUILT_FROM) else "")


def add(**row) -> None:
    with LINES.open("a") as file:
        file.write(json.dumps(row) + "\n")


def rows() -> list[dict]:
    return [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []


def listed(name: str) -> dict[str, str]:
    """Patterns of tests that a list of this folder has, with the reason."""
    lines = [line.split(None, 1) for line in (HERE / name).read_text().splitlines() if line and line[0] != "#"]
    return {pattern: why.strip() for pattern, why in lines}


def reason(test: str, name: str) -> str:
    """Why a list of this folder has the test. Empty: it does not."""
    return next((why for pattern, why in listed(name).items() if fnmatch.fnmatch(test, pattern)), "")


def on_purpose(row: dict) -> int:
    """How many tests differ on purpose. Lines from before 2026-11-25 do not say it; of the files that known.txt names, all that are missing do."""
    if "on_purpose" in row:
        return len(row["on_purpose"])
    known = re.findall(r"^test_(\w+)\.py::", (HERE / "known.txt").read_text(), re.M)
    return row["theirs_passed"] - row["passed"] - len(row["lost"]) if row["file"] in known else 0


def table(rows: list[dict], files: list[str]) -> str:
    """By the number of runs: which files, how many tests, what was lost in any of the runs."""
    runs = {name: [row for row in rows if row["file"] == name] for name in files}
    lines = ["| runs | files | tests that pass on MXNet's engine | lost | that differ on purpose | ends that were not clean |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for count in sorted({min(len(of), WANTED) for of in runs.values()}, reverse=True):
        group = {name: of for name, of in runs.items() if min(len(of), WANTED) == count}
        passed, lost, differ, unclean = (
            f"{sum(what(of) for of in group.values()):,}" if count else ""
            for what in (
                lambda of: max(row["theirs_passed"] for row in of),
                lambda of: len({test for row in of for test in row["lost"]}),
                lambda of: max(on_purpose(row) for row in of),
                lambda of: sum(not row["clean"] for row in of),
            )
        )
        names = ", ".join(sorted(group))
        lines.append(f"| {f'{count} or more' if count == WANTED else count} | {len(group)}: {names} | {passed} | {lost} | {differ} | {unclean} |")
    each = collections.Counter((name, row["commit"]) for name, of in runs.items() for row in of)
    whole = collections.Counter(commit for (_, commit), count in each.items() if count >= WANTED)
    latest = sorted(whole, key=lambda commit: whole[commit])[-1:]  # of those with as many, as rows stand in the order of their runs
    most = [f"Most at one commit: {WANTED} runs of {whole[commit]} of the files, at {commit}." for commit in latest]
    lost = sorted({(row["commit"], test) for of in runs.values() for row in of for test in row["lost"]})
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    return "\n".join([*lines, "", " ".join([f"{len(rows)} runs of files, of the engine at {commits or 'no commit yet'}.", *most]),
                      *(f"- lost at {at}: `{test}`{f': on both engines, now and then: {why}' if (why := reason(test, 'unsteady.txt')) else ''}" for at, test in lost)]) + "\n"  # fmt: skip


def tell(files: list[str]) -> None:
    """Writes the sum into the page. `files`: all that MXNet has."""
    block = f"<!-- mxnet:runs:begin -->\n{table(rows(), files)}<!-- mxnet:runs:end -->"
    page, found = re.subn(r"<!-- mxnet:runs:begin -->.*<!-- mxnet:runs:end -->", lambda _: block, PAGE.read_text(), flags=re.S)
    if found != 1:
        raise SystemExit(f"{PAGE} has no place for the runs")
    PAGE.write_text(page)
