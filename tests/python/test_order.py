"""Contract 1 and 2: conflicting ops run in the order of their pushes, others may overlap."""

import threading

import engine
from conftest import PATIENCE


def test_writers_of_one_var_run_in_push_order():
    v, seen = engine.Var("v"), []
    for i in range(200):
        engine.push(lambda i=i: seen.append(i), writes=[v])
    v.wait()
    assert seen == list(range(200))


def test_a_reader_waits_for_the_writer_before_it(gate):
    v, seen = engine.Var("v"), []
    engine.push(lambda: (gate(), seen.append("written")), writes=[v])
    engine.push(lambda: seen.append("read"), reads=[v])
    gate.wait_until_entered()
    assert seen == []
    gate.open()
    engine.wait_all()
    assert seen == ["written", "read"]


def test_a_writer_waits_for_earlier_readers(gate):
    v, seen = engine.Var("v"), []
    engine.push(lambda: (gate(), seen.append("read")), reads=[v])
    engine.push(lambda: seen.append("written"), writes=[v])
    gate.wait_until_entered()
    assert not v.wait(0)
    gate.open()
    v.wait()
    assert seen == ["read", "written"]


def test_readers_of_one_var_run_together():
    with engine.Engine(workers=2) as two:
        v, barrier = engine.Var("v", two), threading.Barrier(2)
        for _ in range(2):
            two.push(lambda: barrier.wait(PATIENCE), reads=[v])  # returns only if both are there at once
        two.wait_all()


def test_ops_on_different_vars_run_together():
    with engine.Engine(workers=2) as two:
        barrier = threading.Barrier(2)
        for name in "ab":
            two.push(lambda: barrier.wait(PATIENCE), writes=[engine.Var(name, two)])
        two.wait_all()


def test_a_var_named_twice_counts_once_in_its_strongest_mode():
    v = engine.Var("v")
    engine.push(lambda: None, reads=[v, v], writes=[v])
    engine.push(lambda: None, updates=[v], writes=[v, v])
    v.wait()
    assert v.version == 2


def test_an_op_without_vars_runs(gate):
    engine.push(gate)
    gate.wait_until_entered()


def test_versions_count_writes_not_reads():
    v = engine.Var("v")
    for _ in range(10):
        engine.push(lambda: None, reads=[v])
    engine.wait_all()
    assert v.version == 0
    for _ in range(10):
        engine.push(lambda: None, updates=[v])
    v.wait()
    assert v.version == 10


def test_one_var_need_not_be_in_a_list():
    a, b = engine.Var("a"), engine.Var("b")
    engine.push(lambda: None, a, writes=b)
    b.wait()
    assert (a.version, b.version) == (0, 1)


def test_vars_may_come_from_any_iterable():
    names = [engine.Var(str(i)) for i in range(3)]
    engine.push(lambda: None, writes=(v for v in names))
    engine.push(lambda: None, updates=set(names))
    engine.wait(*names)
    assert [v.version for v in names] == [2, 2, 2]


def test_ops_may_push_ops():
    v, seen = engine.Var("v"), []

    def outer():
        seen.append("outer")
        engine.push(lambda: seen.append("inner"), updates=[v])

    engine.push(outer, updates=[v])
    engine.wait_all()
    engine.wait_all()  # "every push that returned before": the inner one may be younger than the first
    assert seen == ["outer", "inner"]


def test_random_programs_give_the_values_of_serial_order(rng):
    cells = [engine.value([i], f"cell{i}") for i in range(8)]
    plain = [[i] for i in range(8)]

    def mix(target, sources, salt):
        target[0] = hash((target[0], salt, *(s[0] for s in sources))) & 0xFFFFFFFF

    op = engine.op(mix, updates="target")
    for salt in range(2000):
        to, *sources = rng.sample(range(8), rng.randint(1, 4))
        op(cells[to], [cells[s] for s in sources], salt)
        mix(plain[to], [plain[s] for s in sources], salt)
    assert [c.get() for c in cells] == plain


def test_threads_that_push_overlapping_sets_do_not_deadlock(rng):
    cells, counts = [engine.Var(str(i)) for i in range(6)], [0] * 6

    def pusher(seed):
        import random

        mine = random.Random(seed)
        for _ in range(500):
            picked = mine.sample(range(6), 3)

            def count(picked=picked):
                for i in picked:
                    counts[i] += 1  # a lost update would show: only the Vars guard this

            engine.push(count, updates=[cells[i] for i in picked])

    threads = [threading.Thread(target=pusher, args=(rng.random(),)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
        assert not t.is_alive()
    engine.wait(*cells)
    assert sum(counts) == 4 * 500 * 3
