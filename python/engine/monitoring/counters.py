"""Counters of an engine and of the program's stages, as a dict, and as Prometheus reads them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Mapping

from .. import _core
from ..errors import UsageError
from ..stages import alive

if TYPE_CHECKING:
    from .server import MetricsServer

# Counters that may also fall: Prometheus calls these gauges.
GAUGES = {"spare_threads", "slab_bytes", "unseen_errors", "pending", "workers", "fill", "fill_bytes", "waiting", "capacity", "threads",
          "position", "on"}  # fmt: skip


class Metrics:
    """``engine.metrics()`` is a dict; ``engine.metrics.prometheus()`` the same as text; ``serve()`` an endpoint of it."""

    def __call__(self, engine: _core.Engine | None = None) -> dict[str, Any]:
        """All counters now: those of ``engine.stats()``, ``pending`` (ops pushed and not ended) and ``workers``;
        ``devices``: those of ``engine.device_stats()``; ``stages``: by name, those of each stage and smart stage that is alive.

        ``engine``: the default one if it is not given. Any thread may ask; nothing is held up, so the counters are not
        of one instant."""
        eng = engine or _core.default()
        counters = eng.stats()
        out: dict[str, Any] = {
            **counters,
            "pending": max(0, counters["pushed"] - counters["completed"]),
            "workers": eng.workers,
            "devices": eng.device_stats(),
            "stages": {},
        }
        for stage in sorted(alive(), key=lambda s: s.name):
            name, n = stage.name, 1
            while name in out["stages"]:
                n += 1
                name = f"{stage.name} {n}"
            out["stages"][name] = _told(stage.stats())
        return out

    def prometheus(self, engine: _core.Engine | None = None) -> str:
        """The same in Prometheus' text format: engine_pushed_total, engine_pending, engine_stage_fill{stage="..."}."""
        now = self(engine)
        devices, stages = now.pop("devices"), now.pop("stages")
        lines: list[str] = []
        _family(lines, "engine", {"": now})
        _family(lines, "engine_device", {"": devices})
        _family(lines, "engine_stage", {f'{{stage="{_escaped(name)}"}}': told for name, told in stages.items()})
        return "\n".join(lines) + "\n"

    def serve(self, port: int = 0, engine: _core.Engine | None = None, host: str = "127.0.0.1") -> MetricsServer:
        """Answers http://127.0.0.1:PORT/metrics, until the server's ``close()`` or the end of the program.

        Nothing listens before somebody calls this. ``port`` 0: any free one. ``host``: only addresses of this machine
        itself are allowed (127.0.0.1, ::1, localhost), because there is no password; UsageError for others. OSError
        if the port is taken. One thread answers; it is a daemon."""
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise UsageError(f"serve: host is {host!r}; only 127.0.0.1, ::1 and localhost are allowed, because anybody who "
                             "reaches it may read it; put a proxy that asks for a password in front")  # fmt: skip
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 65536:
            raise UsageError(f"serve: port is {port!r}; 0 to 65535 is expected")
        from .server import MetricsServer  # here, because http.server takes long to import

        return MetricsServer(self, engine or _core.default(), host, port)


def _told(stats: dict[str, Any]) -> dict[str, Any]:
    """What a stage tells; of a smart stage its own counters, ``delivered`` counts steps, and those of its last level while there is one."""
    if "steps" not in stats:
        return stats
    none = dict.fromkeys(("fill", "capacity", "threads"), 0) | dict.fromkeys(("producer_wait", "consumer_wait"), 0.0)
    own = {name: int(told) for name, told in stats.items() if isinstance(told, int)}
    return {**none, **(stats.get("stage") or {}), **own, "delivered": own["steps"]}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _family(lines: list[str], prefix: str, samples: Mapping[str, Mapping[str, Any]]) -> None:
    names = dict.fromkeys(name for told in samples.values() for name in told)
    for name in names:
        gauge = name in GAUGES
        full = f"{prefix}_{name}" + ("" if gauge else "_seconds_total" if name.endswith("_wait") else "_total")
        lines.append(f"# TYPE {full} {'gauge' if gauge else 'counter'}")
        for label, told in samples.items():
            if isinstance(told.get(name), (int, float)):
                lines.append(f"{full}{label} {told[name]}")


def read(text: str) -> dict[str, float]:
    """The samples of a text in Prometheus' format, by name and labels. UsageError if it is none."""
    out: dict[str, float] = {}
    for line in text.split("\n"):  # names of stages may have other ends of lines
        if not line or line.startswith("#"):
            continue
        name, _, number = line.rpartition(" ")
        try:
            out[name] = float(number)
        except ValueError:
            raise UsageError(f"this is no text of Prometheus': {line[:60]!r}") from None
    if "engine_pushed_total" not in out:
        raise UsageError("the answer has no engine_pushed_total: nothing of engine.metrics answers there")
    return out


def clock() -> float:
    """What rates are counted by."""
    return time.monotonic()


metrics = Metrics()
