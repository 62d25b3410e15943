"""The endpoint of engine.metrics.serve(). Imported when it is first asked for."""

from __future__ import annotations

import http.server
import socket
import threading
from typing import TYPE_CHECKING, Any

from .. import _core

if TYPE_CHECKING:
    from .counters import Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
        if self._thread.is_alive():  # in a fork's child it is not, and nobody would answer
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
    address_family = socket.AF_INET6
