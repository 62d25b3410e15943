"""Stages whose producers are interrupted as they start, whose filters raise, and whose items change while they are counted."""

import threading
import time

import pytest

import engine


@pytest.mark.parametrize("began", [False, True])
def test_ctrl_c_while_a_producer_starts_leaves_one_producer(began, monkeypatch):
    real, interrupts = threading.Thread.start, [1]

    def start(thread):
        if interrupts and not began:
            raise interrupts.pop() and KeyboardInterrupt
        real(thread)
        if interrupts:
            while not produced:  # its producer is at work
                time.sleep(0)
            raise interrupts.pop() and KeyboardInterrupt

    produced = []
    monkeypatch.setattr(threading.Thread, "start", start)
    stage = engine.data.staged(lambda: produced.append(len(produced)) or produced[-1], capacity=4)
    taken = []
    with pytest.raises(KeyboardInterrupt):
        for _ in range(100):
            taken.append(next(stage))
    taken += [next(stage) for _ in range(20)]
    assert taken in (list(range(len(taken))), list(range(1, len(taken) + 1)))  # one may have been on its way
    assert len([thread for thread in threading.enumerate() if thread.name == f"stage {stage.name}"]) == 1
    stage.close()


def test_a_filter_that_raises_fails_the_stage_with_that():
    class Meta(type):
        def __instancecheck__(cls, instance):
            raise OSError("from the metaclass")

    class Ignored(Exception, metaclass=Meta):
        pass

    def source():
        raise KeyError("planted")

    stage = engine.data.staged(source, ignored_exception_types=Ignored)
    with pytest.raises(OSError, match="from the metaclass"):
        next(stage)


def test_an_item_may_change_while_its_bytes_are_counted():
    class Clears:
        def __init__(self, container):
            self.container = container

        @property
        def nbytes(self):
            self.container.clear()
            return 100

    def source():
        items = [bytes(1000) for _ in range(100)]
        table = {name: bytes(1000) for name in "abcdef"}
        items.insert(0, Clears(items))
        table = {"first": None, **table}
        table["first"] = Clears(table)
        return [items, table]

    stage = engine.data.staged(source, capacity=3, capacity_bytes=1 << 20)
    for _ in range(20):
        items, table = next(stage)
        assert items == [] and table == {}
    stage.close()


@pytest.mark.parametrize("call", ["join", "restart"])
def test_its_own_source_may_neither_join_nor_restart_it(call):
    def source():
        getattr(stage, call)()

    stage = engine.data.staged(source, name="rows")
    with pytest.raises(engine.UsageError, match=f"stage 'rows': its own source calls {call}, which waits until that source has returned"):
        next(stage)
    assert stage.join()
