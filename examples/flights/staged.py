"""What SmartStage made of the training step, and what that brought."""

import engine

REASONS = 3  # shown of many


def told(steps):
    """Prints what was staged, why the rest was not, and the measured gain; then ends the stage."""
    report, stats = steps.report, steps.stats()
    ahead = [name for name, reason in report["nodes"] if not reason]
    kept = [(name, reason) for name, reason in report["nodes"] if reason]
    print(f"demo: SmartStage finds {len(ahead)} of the step's {len(report['nodes'])} ops that may run ahead: {', '.join(ahead) or 'none'}")
    for name, reason in kept[:REASONS]:
        print(f"      not {name}: {reason}")
    if len(kept) > REASONS:
        print(f"      and {len(kept) - REASONS} more of the model's ops")
    for name, size in report["boundary"]:
        print(f"      handed over {name}: {size / 1e6:.2f} MB a step")
    steps.cancel()
    print(f"      predicted {report['staged_seconds'] * 1e3:.1f} ms a step, {report['whole_seconds'] * 1e3:.1f} ms of work "
          f"without; read {stats['read']} steps for {stats['position']} run")  # fmt: skip
    whole, staged = report["measured_whole_seconds"], report["measured_staged_seconds"]
    if not (whole and staged):
        print("      too few steps to measure the gain")
        return
    workers = engine.default().workers
    best = report["whole_seconds"] / workers
    print(f"      measured {staged * 1e3:.1f} ms a step staged, {whole * 1e3:.1f} ms whole: {whole / staged:.2f}x, "
          f"{'steps are staged' if report['on'] else 'so steps run whole'}")  # fmt: skip
    print(f"      all of a step's work, shared by {workers} workers, takes {best * 1e3:.1f} ms: "
          f"no way to run steps could gain more than {max(1.0, whole / best):.2f}x here")  # fmt: skip
