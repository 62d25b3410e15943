"""Nodes that are functions of C, as engine.torch's adapter gives them, and the table of functions that these may call."""

import ctypes
import threading
from ctypes import CFUNCTYPE, POINTER, PYFUNCTYPE, c_char_p, c_int32, c_size_t, c_uint64, c_void_p

import pytest

import engine
from engine import _core

Node = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_void_p)
Piece = CFUNCTYPE(None, c_void_p, c_size_t, c_size_t)


class Table(ctypes.Structure):
    _fields_ = [("run", PYFUNCTYPE(c_int32, c_void_p, c_void_p, c_char_p, c_void_p)), ("know_thread", CFUNCTYPE(None)),
                ("parallel_for", CFUNCTYPE(None, c_void_p, c_size_t, c_size_t, Piece, c_void_p))]  # fmt: skip


TABLE = ctypes.cast(_core.native_table(), POINTER(Table)).contents


def run(body, *, threads, policy=b"threaded"):
    """A run of one node, which calls ``body`` with its context."""
    node = Node(lambda frame, number, context: body(context) or 0)
    graph = _core.Graph()
    _core.add_native(graph, ctypes.cast(node, c_void_p).value, 0, graph.input("frame"), "node", __file__, 1, threads)
    with engine.Engine(workers=2) as eng:
        plan = graph.compile(eng, name="native")
        assert TABLE.run(_core.plan_address(plan), None, policy, None) == 0


def test_a_loop_is_shared_with_a_thread_of_the_run_that_is_idle():
    pieces, threads, both = [], set(), threading.Event()

    def body(context):
        @Piece
        def piece(of, begin, end):
            pieces.append((of, begin, end))
            threads.add(threading.get_ident())
            if len(threads) == 2:
                both.set()
            if begin == 0:
                both.wait(10)

        TABLE.parallel_for(context, 8, 1, piece, 7)

    run(body, threads=2)
    assert sorted(pieces) == [(7, i, i + 1) for i in range(8)]
    assert both.is_set()


@pytest.mark.parametrize(("threads", "policy"), [(1, b"threaded"), (2, b"inline")])
def test_a_loop_of_one_thread_is_one_piece(threads, policy):
    pieces = []
    run(lambda context: TABLE.parallel_for(context, 8, 1, Piece(lambda *part: pieces.append(part)), None), threads=threads, policy=policy)
    assert pieces == [(None, 0, 8)]
