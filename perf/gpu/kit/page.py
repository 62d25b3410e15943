"""The page at the end: what people read first."""

import judge
import machine
import report
from parts import Part


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    line = lambda cells: "| " + " | ".join(str(c).replace("|", "/") for c in cells) + " |"  # noqa: E731
    return [line(head), "|" + "---|" * len(head), *map(line, rows), ""]


def page(result: dict, parts: list[Part], command: str) -> str:
    header = result["header"]
    by_name = {p["name"]: p for p in result["parts"]}
    out = [f"# The engine on {header['gpu']}", "", f"Kit {header['commit']}, begun {header['date']}.", ""]
    if not header["judged"]:
        out += ["**A model, not a GPU: times mean nothing.**", ""]
    out += [*(f"- {line}" for line in machine.lines(header["machine"])), "", "## Parts", ""]
    out += _table(["part", "what", "result", "s", ""],
                  [[p.name, p.about, by_name[p.name]["status"], by_name[p.name]["seconds"], by_name[p.name]["why"]]
                   if p.name in by_name else [p.name, p.about, "not begun", "", ""] for p in parts])  # fmt: skip
    left = [p.name for p in parts if by_name.get(p.name, {}).get("status", "cut") == "cut"]
    if left:
        out += [f"{len(left)} parts are left: `{command}` goes on with them.", ""]
    wrong = [c for c in result["counters"] if c["verdict"] == "WRONG"]
    if result["counters"]:
        out += ["## Counters", "", f"{len(result['counters']) - len(wrong)} of {len(result['counters'])} are exact.", ""]
        if wrong:
            out += _table(["scenario", "counter", "got", "must be"], [[c["case"], c["counter"], c["got"], c["want"]] for c in wrong])
    if result["rows"]:
        out += ["## Rows", "", "`x` is ours / by hand with its 95 % interval: below 1, ours is faster.", ""]
        out += _table(["row", "case", "ours", "by hand", "x", "verdict", "target"],
                      [_row(r) for r in sorted(result["rows"], key=lambda r: r["row"])])  # fmt: skip
    if result["calibration"]:
        out += ["## Calibration", ""]
        out += _table(["call", "ns", "quartiles"], [[c["name"], f"{c['ours']:.0f}", f"{c['spread'][0]:.0f} – {c['spread'][1]:.0f}"]
                                                    for c in result["calibration"]])  # fmt: skip
    for part in result["parts"]:
        if part["status"] in ("failed", "cut") and part["text"]:
            out += [f"## The end of {part['name']}", "", "```", *part["text"][-40:], "```", ""]
    return "\n".join(out)


def _row(row: dict) -> list[str]:
    name = row["case"] if row["metric"].startswith("time") else f"{row['case']}, {row['metric']}"
    ratio = f"{row['ratio']:.3f} [{row['lo']:.3f}, {row['hi']:.3f}]" if row["ratio"] is not None else ""
    peer = report.number(row["peer"], row["unit"]) if row["peer"] is not None else ""
    return [row["row"], name, report.number(row["ours"], row["unit"]), f"{peer} ({row['peer_name']})" if peer else "", ratio,
            row["verdict"], judge.target(row)]  # fmt: skip
