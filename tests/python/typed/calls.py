"""Not run: test_typing.py has mypy look at it. A line that ends in `# says T` is an expression whose type is T."""

import engine


@engine.op
def scaled(x: float, by: int = 2) -> float:
    return x * by


@engine.op(name="shifted", priority=1)
def shifted(x: float) -> list[float]:
    return [x]


@engine.op(updates="w")
def step(w: list[float], gradient: float) -> None:
    w[0] -= gradient


@engine.op(updates="w", outputs=1)
def popped(w: list[float]) -> float:
    return w.pop()


@engine.op(outputs=2)
def halves(x: float) -> tuple[float, float]:
    return x / 2, x / 2


@engine.hybridize
def both(x: engine.Value[float], by: int = 1) -> engine.Value[float]:
    return scaled(scaled(x), by)


@engine.op
def summed(items: list[float], by: float = 1.0) -> float:
    return sum(items) * by


class Model:
    @engine.op(name="run")
    def run(self, x: float) -> float:
        return x


weights = engine.value([1.0])

scaled(1.0)  # says Value[float]
scaled(engine.value(1.0), by=3)  # says Value[float]
scaled(1.0).get()  # says float
scaled(by=engine.value(3), x=scaled(1.0)).get()  # says float
summed([scaled(1.0), 2.0], by=scaled(1.0)).get()  # says float
summed(scaled(1.0)).get()  # says float
scaled(1.0) + 1  # says Any
scaled(1.0)[0]  # says Any
-scaled(1.0)  # says Any
shifted(2.0).get()  # says list[float]
step(weights, 1.0)  # says None
popped(weights).get()  # says float
both(engine.value(1.0))  # says Value[float]
both(engine.value(1.0)).get()  # says float
Model().run(1.0).get()  # says float
Model().run(scaled(1.0)).get()  # says float
Model().run("one")  # mypy refuses this line
weights.get()  # says list[float]
weights.done()  # says bool
[v.get() for v in engine.as_completed([scaled(1.0)])]  # says list[float]
list(engine.map(len, ["a"]))  # says list[int]
engine.Executor().submit(len, "a").result()  # says int
engine.push(lambda: None)  # says None
engine.try_push(lambda: None)  # says bool


async def main() -> None:
    await scaled(1.0)  # says float


both(1, 2, 3)  # mypy refuses this line
both("one")  # mypy refuses this line
scaled("one")  # mypy refuses this line
scaled()  # mypy refuses this line
scaled(1.0, 2, 3)  # mypy refuses this line
scaled(1.0, bye=2)  # mypy refuses this line
scaled(engine.value(1.0), by="two")  # mypy refuses this line
scaled(engine.value(1.0), 2, 3)  # mypy refuses this line
step(weights)  # mypy refuses this line
step(weights, "much")  # mypy refuses this line
halves([1.0])  # mypy refuses this line
summed([1.0, "two"])  # mypy refuses this line
engine.push(lambda: None, prioriy=1)  # mypy refuses this line
