"""Why a graph or a step cannot become a program: what is raised, and what is noted where the step itself handles the error."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _Here(threading.local):
    refused: list[tuple[type, str]] | None = None


_here = _Here()


class Unsupported(Exception):
    """The graph cannot become a program; the text says why."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        if _here.refused is not None:
            _here.refused.append((type(self), why))


class NotYet(Unsupported):
    """This call has to run eagerly, because it makes what a capture needs, such as an optimizer's state of a parameter. The next one
    can be captured."""


class SetBack(NotYet):
    """The step itself sets whether modules train, and this call found them set otherwise. Behind an eager call they are as a capture needs
    them."""


@contextlib.contextmanager
def refusals_raised() -> Iterator[None]:
    """Raises at its end what was Unsupported inside on this thread, also where a step has handled that as an error of its own."""
    before, _here.refused = _here.refused, []
    try:
        yield
        refused = _here.refused
    finally:
        _here.refused = before
    for kind, why in refused:
        raise kind(why)


def capturing() -> bool:
    """Whether a step is being captured on this thread."""
    return _here.refused is not None


def refused(why: str) -> None:
    """Notes for refusals_raised() what is Unsupported, where another exception is on its way."""
    if _here.refused is not None:
        _here.refused.append((Unsupported, why))
