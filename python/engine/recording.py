"""Recordings: what one recording of a function found out, and whether that still holds."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _core
from .bindings import Binding, Link, changed, exchanged, hold, links
from .noted import Sharing
from .once import MadeFirst
from .values import Value


class Recording:
    """What one recording of a function found out."""

    plan: _core.Plan
    engine: _core.Engine
    free: bool  # it uses no state, and has one output
    returned: Any  # what the function returned, with Places for recorded values
    passed: dict[int, int]  # outputs that are arguments: which, if that is a Value
    shared: list[Sharing]  # outputs that share memory
    types: list[type]  # of the arguments
    state: dict[int, Value[Any]]  # arguments that are the same Value in every call
    results: set[int]  # arguments that are another Value in each call
    overwritten: set[int]  # arguments that the function changes in place
    bound: list[Binding]  # the ways to state, which must still lead to the same objects when it is replayed
    constants: list[Binding]  # bools, None, numbers and texts that the function names, with the values that they had
    sizes: list[Binding]  # of the containers that the ways to state lead through
    links: tuple[Link, ...]  # what all of these lead over
    unwatched: list[str]  # state that no way is known to, so that nobody notices if there is other state in its place
    reached: list[Value[Any]]  # state that is no argument here; a call that is given it as an argument is recorded anew
    once: MadeFirst  # if it holds for one call alone: the state that it makes (once.py)
    profile: _core.Run | None = None  # the last run that was timed

    def holds(self) -> bool:
        """Whether all that it leads over is what it was. Else it may lead to the same state and constants all the same."""
        return hold(self.links)

    def changed(self) -> Binding | None:
        """A constant or a size that is not what it was, so that another recording is needed."""
        return changed(self.constants) or changed(self.sizes)

    def exchanged(self) -> Binding | None:
        """A way to state that leads to something else."""
        return exchanged(self.bound)

    def link(self) -> None:
        """It holds: so it does over what the ways lead over now."""
        self.links = links([*self.bound, *self.constants, *self.sizes])


class Known(NamedTuple):
    """What the short way of a call (src/replay.cc) checks and starts: the recording for arguments none of which is None or a bool."""

    plan: _core.Plan
    returned: Any
    types: tuple[type, ...]
    states: tuple[Value[Any] | None, ...]  # by argument
    values: tuple[bool, ...]  # whether the argument may be a Value
    links: tuple[Link, ...]  # of the recording; none if nothing is checked
