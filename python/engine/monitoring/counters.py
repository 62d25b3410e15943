"""Counters of an engine and of the program's stages, as a dict, and as Prometheus reads them."""

from __future__ import annotations

import http.server
import threading
import time
from typing import Any, Mapping

from .. import _core
from ..errors import UsageError
from ..stages import _alive as _stages

# Counters that may also fall: Prometheus calls these gauges.
GAUGES = {"spare_threads", "slab_bytes", "unseen_errors", "pending", "workers", "fill", "fill_bytes", "waiting", "capacity", "threads",
          "position"}  # fmt: skip
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """``engine.metrics()`` is a dict; ``engine.metrics.prometheus()`` the same as text; ``serve()`` an endpoint of it."""

    def __call__(self, engine: _core.Engine | None = None) -> dict[str, Any]:
        """All counters now: those of ``engine.stats()``, ``pending`` (ops pushed and not ended) and ``workers``;
        ``devices``: those of ``engine.device_stats()``; ``stages``: by name, those of each stage that is alive.

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
        for stage in sorted(_stages, key=lambda s: s.name):
            name, n = stage.name, 1
            while name in out["stages"]:
                n += 1
                name = f"{stage.name} {n}"
            out["stages"][name] = dict(stage.stats())
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
        if not isinstance(port, int) or not 0 <= port < 65536:
            raise UsageError(f"serve: port is {port!r}; 0 to 65535 is expected")
        return MetricsServer(self, engine or _core.default(), host, port)


class MetricsServer:
    """What ``engine.metrics.serve()`` returns: ``url``, ``port``, ``close()``; ``with`` closes it too."""

    def __init__(self, source: Metrics, engine: _core.Engine, host: str, port: int) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.split("?")[0] in ("/", "/metrics")
                text = source.prometheus(engine) if found else "there is /metrics, and nothing else\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        kind = _Server6 if host == "::1" else _Server
        self._server = kind((host, port), Handler)
        self.port = int(self._server.server_address[1])
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="engine-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it. May be repeated."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<engine.metrics at {self.url}>"


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


class _Server6(_Server):
    import socket

    address_family = socket.AF_INET6


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
    for line in text.splitlines():
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
