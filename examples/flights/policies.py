"""The same epoch under each policy: how fast it is, how close to the best that the step's graph allows, and whether the loss is
equal to the last bit."""

import time

import engine
import serial
import through_engine


# An epoch has room for the window: some steps before it, ten that are measured, and fifty that are compared.
PARAMETERS = {"cost_model": {"start_step": 5, "stop_step": 15}}


def measure(policy, source, test, limit, expected):
    """One line of the table, and whether the training loss is ``expected`` to the last bit."""
    with engine.policy(policy, **PARAMETERS.get(policy, {})):
        trainer = through_engine.ThroughEngine(source, test, limit)
        begin = time.perf_counter()
        loss = trainer.train(0)
        seconds = time.perf_counter() - begin
        step = trainer.steps[serial.SHARDS]
        best = None
        for _ in range(5):  # the fastest of five single steps, all with the rows of the last one
            step.profile()
            told = engine.explain(step)
            best = told if best is None or told.makespan < best.makespan else best
    steps = len(serial.epoch_order(source, 0, limit))
    same = loss == expected
    return (
        f"  {policy:9} {steps / seconds:8.1f} {best.work * 1e3:9.2f} {best.critical * 1e3:9.2f} "
        f"{best.makespan * 1e3:12.2f} {best.makespan / best.bound:8.2f}   {'the same' if same else 'DIFFERENT'}"
    ), same


def table(source, test, limit, expected):
    """Prints the table; true if every policy gave the same loss."""
    print("demo: the hybridized step under each policy; T1 is its work, T-inf its critical path,")
    print("      bound = max(T1 / workers, T-inf); the loss of the first epoch beside the serial one")
    print(f"  {'policy':9} {'steps/s':>8} {'T1 ms':>9} {'T-inf ms':>9} {'makespan ms':>12} {'/ bound':>8}   loss")
    same = True
    for policy in engine.policies():
        line, equal = measure(policy, source, test, limit, expected)
        print(line)
        same = same and equal
    return same
