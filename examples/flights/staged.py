"""What SmartStage made of the training step, and what that brought."""

import through_engine

REASONS = 3  # shown of many
EPOCHS = 4  # at most, until both ways are measured


def told(steps):
    """Prints what was staged and why the rest was not, and the gain as the guard measured it; then ends the stage."""
    report, stats = steps.report, steps.stats()
    ahead = [name for name, reason in report["nodes"] if not reason]
    kept = [(name, reason) for name, reason in report["nodes"] if reason]
    print(f"demo: SmartStage runs {len(ahead)} of the step's {len(report['nodes'])} ops ahead: {', '.join(ahead) or 'none'}")
    for name, reason in kept[:REASONS]:
        print(f"      not {name}: {reason}")
    if len(kept) > REASONS:
        print(f"      and {len(kept) - REASONS} more of the model's ops")
    for name, size in report["boundary"]:
        print(f"      handed over {name}: {size / 1e6:.2f} MB a step")
    print(f"      predicted {report['staged_seconds'] * 1e3:.1f} ms a step, {report['whole_seconds'] * 1e3:.1f} ms of work "
          f"without; read {stats['read']} steps for {stats['position']} run")  # fmt: skip
    print(f"      {through_engine.AHEAD} steps in flight: {measured(report)}")
    if report["decided"] and not report["on"]:
        print("      (steps in flight overlap by themselves: input runs beside the training of those before, staged or not)")
    steps.cancel()


def measured(report):
    whole, staged = report["measured_whole_seconds"], report["measured_staged_seconds"]
    if not (whole and staged):
        return "too few steps to measure the gain"
    return (f"measured {staged * 1e3:.1f} ms a step staged, {whole * 1e3:.1f} ms whole: {whole / staged:.2f}x, "
            f"{'it stays staged' if report['on'] else 'so the stage was dropped'}")  # fmt: skip


def waited_for(source, test):
    """The same training by a program that looks at each loss before it goes on: there input is in the way."""
    trainer = through_engine.ThroughEngine(source, test, ahead=0)
    for epoch in range(EPOCHS):
        trainer.train(epoch)
        if trainer.staged.report["decided"]:
            break
    print(f"      each step waited for: {measured(trainer.staged.report)}")
    trainer.staged.cancel()
