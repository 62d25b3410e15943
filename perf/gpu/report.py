#!/usr/bin/env python3
"""A result file of the GPU suite as text, and as one page with pictures that needs nothing else.

    report.py RESULT.json [OUT.html]
"""

import html as escape
import json
import sys
from pathlib import Path

import judge

COLOURS = {"kept": "#2e7d32", "missed": "#c62828", "ambiguous": "#ef8f00", "not judged": "#607d8b", "told": "#607d8b"}
KERNELS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb")


def number(value: float, unit: str = "") -> str:
    for scale, name in ((1e6, "ms"), (1e3, "us")):
        if unit == "ns" and abs(value) >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value:.3g}{' ' + unit if unit else ''}"


def line(row: dict) -> str:
    text = f"{row['row']:>3}  {row['case']}, {row['metric']}: {number(row['ours'], row['unit'])}"
    if row["peer"] is not None:
        text += f"; {row['peer_name']} {number(row['peer'], row['unit'])}"
    if row["ratio"] is not None:
        text += f"; x {row['ratio']:.3f} [{row['lo']:.3f}, {row['hi']:.3f}]"
    goal = judge.target(row)
    return f"{text}  {row['verdict']}{', target ' + goal if goal else ''}"


def summary(result: dict) -> str:
    exact = sum(c["verdict"] == "exact" for c in result["counters"])
    verdicts = [r["verdict"] for r in result["rows"]]
    told = ", ".join(f"{verdicts.count(v)} {v}" for v in COLOURS if v in verdicts)
    absent = "".join(f"\nrow {a['row']} is absent: {a['why']}" for a in result["absent"])
    return f"counters: {exact} of {len(result['counters'])} exact; rows: {told}{absent}"


def _ratios(rows: list[dict]) -> str:
    """One bar a row: the interval of ours / by hand, a dot at its middle, a tick at the target. Logarithmic."""
    import math

    rows = [r for r in rows if r["ratio"]]
    if not rows:
        return ""
    values = [v for r in rows for v in (r["lo"], r["hi"])] + [1]
    low, high = math.log(min(values)) - 0.1, math.log(max(values)) + 0.1
    left, width, step = 430, 520, 24

    def x(value: float) -> float:
        return left + width * (math.log(max(value, 1e-9)) - low) / (high - low)

    parts = [f'<line x1="{x(1):.1f}" x2="{x(1):.1f}" y1="0" y2="{step * len(rows)}" stroke="#999" stroke-dasharray="3 3"/>']
    for i, r in enumerate(rows):
        y, colour = step * i + step / 2, COLOURS[r["verdict"]]
        label = escape.escape(f"{r['row']}  {r['case']}" + (f" ({r['metric']})" if not r["metric"].startswith("time") else ""))
        parts.append(f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{label}</text>')
        parts.append(f'<line x1="{x(r["lo"]):.1f}" x2="{x(r["hi"]):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="6" stroke-opacity=".45"/>')
        parts.append(f'<circle cx="{x(r["ratio"]):.1f}" cy="{y}" r="4.5" fill="{colour}"/>')
        if r["limit"]["kind"] == "ratio" and low < math.log(r["limit"]["value"]) < high:
            t = x(r["limit"]["value"])
            parts.append(f'<line x1="{t:.1f}" x2="{t:.1f}" y1="{y - 9}" y2="{y + 9}" stroke="#000" stroke-width="2"/>')
        parts.append(f'<text x="{left + width + 12}" y="{y + 4}">{r["ratio"]:.3g}</text>')
    return f'<svg viewBox="0 0 {left + width + 80} {step * len(rows) + 8}" role="img" aria-label="ratios">{"".join(parts)}</svg>'


def _timeline(timeline: dict) -> str:
    """Kernels by lane; what is white between the first and the last is a gap."""
    spans = timeline["spans"][:1200]
    if not spans:
        return ""
    lanes = sorted({s[0] for s in spans})
    names = sorted({s[1] for s in spans})
    end = max(s[3] for s in spans) or 1
    left, width, step = 60, 960, 26
    parts = []
    for lane, name, start, stop in spans:
        y = lanes.index(lane) * step + 4
        title = escape.escape(f"{name}: {number(start, 'ns')} to {number(stop, 'ns')}, {number(stop - start, 'ns')}")
        parts.append(f'<rect x="{left + width * start / end:.2f}" y="{y}" width="{max(0.3, width * (stop - start) / end):.2f}" height="{step - 8}" '
                     f'fill="{KERNELS[names.index(name) % len(KERNELS)]}"><title>{title}</title></rect>')  # fmt: skip
    parts += [f'<text x="0" y="{i * step + 18}">lane {i}</text>' for i in range(len(lanes))]
    shares = []
    for i, lane in enumerate(lanes):
        mine = [s for s in spans if s[0] == lane]
        extent = max(s[3] for s in mine) - min(s[2] for s in mine) or 1
        shares.append(f"lane {i} {sum(s[3] - s[2] for s in mine) / extent:.1%}")
    key = " ".join(f'<b style="color:{KERNELS[i % len(KERNELS)]}">&#9632;</b> {escape.escape(n)}' for i, n in enumerate(names))
    return (f"<h3>{escape.escape(timeline['name'])}</h3><p>{number(end, 'ns')} in all; busy: {', '.join(shares)}. {key}</p>"
            f'<svg viewBox="0 0 {left + width} {len(lanes) * step + 4}" role="img">{"".join(parts)}</svg>')  # fmt: skip


def _table(head: list[str], rows: list[list[str]]) -> str:
    cells = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in r) + "</tr>" for r in rows)
    return f"<table><tr>{''.join(f'<th>{h}</th>' for h in head)}</tr>{cells}</table>"


def html(result: dict) -> str:
    header = result["header"]
    rows = [[str(r["row"]), escape.escape(f"{r['case']}, {r['metric']}"), number(r["ours"], r["unit"]),
             "" if r["peer"] is None else f"{number(r['peer'], r['unit'])} ({escape.escape(r['peer_name'])})",
             "" if r["ratio"] is None else f"{r['ratio']:.3f} [{r['lo']:.3f}, {r['hi']:.3f}]", judge.target(r),
             f'<b style="color:{COLOURS[r["verdict"]]}">{r["verdict"]}</b>'] for r in result["rows"]]  # fmt: skip
    rows += [[str(a["row"]), f"absent: {escape.escape(a['why'])}", "", "", "", "", ""] for a in result["absent"]]
    counters = [[str(c["row"]), escape.escape(c["case"]), escape.escape(c["counter"]), str(c["got"]), str(c["want"]), c["verdict"]]
                for c in result["counters"]]  # fmt: skip
    calibration = [[escape.escape(c["name"]), number(c["ours"], c["unit"]), " to ".join(number(s, c["unit"]) for s in c["spread"])]
                   for c in result["calibration"]]  # fmt: skip
    about = "; ".join(f"{k} {v}" for k, v in header.items() if v not in ("", {}, None))
    note = "" if header["judged"] else f"<p><b>Times of {escape.escape(header['gpu'])} say nothing about a GPU: nobody judges them. Its counters are exact.</b></p>"
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>GPU suite: {escape.escape(header['gpu'])}</title>
<style>body{{font:14px/1.5 system-ui,sans-serif;max-width:1080px;margin:2em auto;color:#222}}svg{{width:100%;font-size:12px}}
table{{border-collapse:collapse;font-variant-numeric:tabular-nums}}td,th{{padding:2px 10px;border-bottom:1px solid #ddd;text-align:left}}</style>
<h1>GPU suite: {escape.escape(header['gpu'])}</h1><p>{escape.escape(about)}</p>{note}<p>{escape.escape(summary(result))}</p>
<h2>Ours against the same work by hand</h2><p>Bars: 95 % interval of the ratio; dashed: as fast as by hand; ticks: targets. Left is faster.</p>
{_ratios(result['rows'])}<h2>When kernels ran</h2>{''.join(map(_timeline, result['timelines']))}
<h2>Rows</h2>{_table(['row', 'what', 'ours', 'by hand', 'ratio', 'target', 'verdict'], rows)}
<h2>Counters</h2>{_table(['row', 'scenario', 'counter', 'counted', 'must be', ''], counters)}
<h2>Calibration</h2>{_table(['call', 'median', 'quartiles'], calibration)}</html>
"""


if __name__ == "__main__":
    source = Path(sys.argv[1])
    (Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".html")).write_text(html(json.loads(source.read_text())))
