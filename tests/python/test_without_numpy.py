"""NumPy is optional: what exports a buffer is a Value and a result without it."""

import array

import numpy as np
import pytest

import engine  # noqa: F401


def test_values_and_ops_of_buffers(run_python):
    ended = run_python("""
    sys.modules["numpy"] = None
    import array
    x = engine.value(bytearray(8))
    assert engine.value(memoryview(x.get())[2:4]).var == x.var

    @engine.op(updates="x")
    def fill(x, by): x[:] = bytes([by]) * len(x)

    same = engine.op(lambda x: x)
    kept = same(x)
    fill(x, 7)
    made = [engine.op(make)().get() for make in (lambda: bytearray(3), lambda: memoryview(bytearray(3)), lambda: array.array("i", [1]))]
    print(kept.get(), x.get(), [bytes(each) for each in made])
    """)
    zeros, sevens, three = bytearray(8), bytearray(b"\7" * 8), bytes(3)
    assert ended.out == f"{zeros} {sevens} {[three, three, array.array('i', [1]).tobytes()]}\n", ended


def test_the_demo_needs_nothing_but_python(run_python, tmp_path):
    page = tmp_path / "demo.html"
    ended = run_python(f"""
    sys.modules["numpy"] = None
    from engine.__main__ import main
    main(["demo", "--steps", "2", "--html", {str(page)!r}])
    """)
    assert ended.code == 0 and page.exists(), ended


def whole():
    return np.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize("part", [
    lambda x: x, lambda x: x.T, lambda x: x[::-1], lambda x: x[1:3, ::-2], lambda x: x[:, 2], lambda x: x[:0], lambda x: x[2:3, 3:4],
    lambda x: x.view("M8[s]")[::-1], lambda x: np.asfortranarray(x)[::2], lambda x: np.broadcast_to(x[0], (3, 6)),
])  # fmt: skip
def test_extents_are_those_that_numpy_tells(part):
    from engine.extents import extents

    array = part(whole())
    low, high = np.lib.array_utils.byte_bounds(array) if hasattr(np.lib, "array_utils") else np.byte_bounds(array)
    (found,) = extents(array)
    assert found == ("host", low, high) or array.size == 0 and found[1] == found[2]
