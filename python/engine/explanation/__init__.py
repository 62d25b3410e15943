"""Explaining: what runs after what, what it cost, what waited for what, and how close a run came to the best possible."""

from __future__ import annotations

import os
from typing import Any, overload

from .. import _core
from ..errors import UsageError, an
from ..graphs import Hybrid
from ..smart import SmartStage
from .model import TraceData, TraceEvent, TraceWait
from .pictures import plan_html
from .plans import Explanation
from .traces import TraceExplanation

_core.Plan._repr_html_ = plan_html  # type: ignore[attr-defined]  # for notebooks

__all__ = ["Explanation", "TraceData", "TraceEvent", "TraceExplanation", "TraceWait", "explain"]


@overload
def explain(what: Hybrid | _core.Plan) -> Explanation: ...
@overload
def explain(what: SmartStage) -> str: ...
@overload
def explain(what: Any) -> Any: ...
def explain(what: Any) -> Any:
    """Explains a hybridized function, a plan or a smart stage, or a trace: what ``engine.trace()`` has recorded, or the file it wrote.

    Of a plan, after ``step.profile(...)`` or under the policy cost_model, also says what each node costs and what
    follows: ranks, slack, batches, the critical path, and how close a step comes to the bound. Of a trace: work, span,
    critical path, parallelism, and idle time by cause. ``print`` the result; ``result.write("page.html")`` makes one
    page with a timeline, which needs no other file and no network. Of a smart stage: the text that its ``explain()`` returns.
    UsageError, which says what is wrong, for a file that is no trace of this engine, for a trace without ops, and for a
    function that was never recorded.
    """
    if isinstance(what, Hybrid):
        what._refuse_eager("explain")
        if (last := what._last) is None:
            raise UsageError(f"explain: {what!r} was not recorded yet; call it, or .record(...) it")
        return Explanation(last.plan, last.profile, last.unwatched)
    if isinstance(what, SmartStage):
        return what.explain()
    if isinstance(what, _core.Plan):
        return Explanation(what)
    if isinstance(what, (str, os.PathLike)):
        return TraceExplanation.of_file(what)
    if isinstance(what, _core.TraceBlock):
        return what.explain()  # type: ignore[attr-defined]  # Trace, the one class that is made of it, has this
    if isinstance(what, TraceData):
        return TraceExplanation(what)
    raise TypeError(
        f"explain: {an(type(what))} is no hybridized function, no plan, no smart stage, no trace and no path of one"
    )
