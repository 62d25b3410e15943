"""The picture: a few steps of both runs on one time axis, and what the training came to."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

COLORS = {
    "read": "#9aa0a6", "parse": "#e8a33d", "lookup": "#2a9d8f", "forward": "#3b7dd8", "interact": "#8ab6f0",
    "loss": "#222222", "backward": "#7b4fc9", "update": "#d1495b", "test": "#5aa469",
}  # fmt: skip
QUIET = ("begin", "tick")  # too short to see
STEPS = 4  # shown


def draw(path, serial_spans, engine_spans, epochs, title):
    """Writes the PNG. Spans: (kind, thread, begin, end, in seconds); epochs: one (seconds, seconds, loss, AUC) each."""
    windows = [_window(spans) for spans in (serial_spans, engine_spans)]
    threads = [("serial", windows[0], "serial")]
    threads += [(thread, windows[1], thread) for thread in sorted({s[1] for s in windows[1]}, key=_thread_order)]
    width = max(s[3] for window in windows for s in window)

    figure = plt.figure(figsize=(15, 3.6 + 0.62 * len(threads)), layout="constrained", facecolor="white")
    rows = figure.add_gridspec(2, 3, height_ratios=[0.62 * len(threads), 2.4])
    timeline = figure.add_subplot(rows[0, :])
    for row, (_, window, thread) in enumerate(threads):
        for kind, where, begin, end in window:
            if where == thread and kind in COLORS:
                timeline.barh(row, (end - begin) * 1e3, left=begin * 1e3, height=0.8, color=COLORS[kind],
                              edgecolor="white", linewidth=0.3)  # fmt: skip
    for window, rows_of in ((windows[0], (-0.5, 0.5)), (windows[1], (0.5, len(threads) - 0.5))):
        for kind, _, begin, end in window:
            if kind == "tick":
                timeline.vlines(begin * 1e3, *rows_of, color="black", linewidth=0.8, linestyle=(0, (2, 2)))
    for window, row in ((windows[0], 0), (windows[1], 1)):
        end = max(s[3] for s in window) * 1e3
        timeline.annotate(f"{end:.0f} ms", (end, row), xytext=(6, 0), textcoords="offset points", va="center")
    timeline.axhline(0.5, color="black", linewidth=0.6)
    timeline.set_yticks(range(len(threads)), [name for name, _, _ in threads])
    timeline.invert_yaxis()
    timeline.set_xlim(0, width * 1e3 * 1.06)
    timeline.set_xlabel(f"milliseconds; the same {STEPS} training steps in both runs, dashed from step to step")
    timeline.set_title(title, loc="left", fontsize=12)
    timeline.legend(
        handles=[Patch(color=color, label=kind) for kind, color in COLORS.items() if kind != "test"],
        ncols=len(COLORS),
        loc="lower center",
        bbox_to_anchor=(0.5, -0.12 - 1.2 / len(threads)),
        frameon=False,
    )
    for side in ("top", "right"):
        timeline.spines[side].set_visible(False)

    numbers = range(1, len(epochs) + 1)
    for column, (name, values, color) in enumerate((
        ("training loss", [e[2] for e in epochs], "#7b4fc9"), ("AUC on days never seen", [e[3] for e in epochs], "#2a9d8f"),
    )):  # fmt: skip
        axes = figure.add_subplot(rows[1, column])
        axes.plot(numbers, values, marker="o", color=color)
        axes.set_title(f"{name} (both runs: the same bits)", fontsize=10, loc="left")
        _epoch_axis(axes, numbers)
    axes = figure.add_subplot(rows[1, 2])
    axes.bar([n - 0.2 for n in numbers], [e[0] for e in epochs], 0.38, color="#9aa0a6", label="serial")
    axes.bar([n + 0.2 for n in numbers], [e[1] for e in epochs], 0.38, color="#3b7dd8", label="engine")
    axes.set_title("seconds an epoch", fontsize=10, loc="left")
    axes.set_ylim(0, 1.35 * max(max(e[:2]) for e in epochs))
    axes.legend(frameon=False, loc="upper right", ncols=2)
    _epoch_axis(axes, numbers)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _epoch_axis(axes, numbers):
    axes.set_xticks(list(numbers))
    axes.set_xlabel("epoch")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _window(spans):
    """STEPS steps from the middle of an epoch, times from their beginning; a step ends with its tick."""
    ticks = sorted(s[3] for s in spans if s[0] == "tick")
    first = max(0, min(len(ticks) // 2, len(ticks) - 1 - STEPS))
    begin, end = ticks[first], ticks[min(first + STEPS, len(ticks) - 1)]
    return [
        (kind, thread, max(b, begin) - begin, min(e, end) - begin)
        for kind, thread, b, e in spans
        if b < end and e > begin
    ]


def _thread_order(thread):
    pool, _, index = thread.partition("/")
    return (pool != "cpu", pool, int(index) if index.isdigit() else 0)
