"""Runner: one contender's process. It is stopped (SIGSTOP) whenever it isn't its turn, so that a pool that spins or
polls while idle, as those of libomp and StarPU do, takes nothing from the contender that is being measured."""

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path


class Runner:
    def __init__(self, binary: Path, args: list[str], log: Path, library: Path | None = None):
        # A library of that folder goes before the one that the runner was linked with.
        self._library = library
        self._env = os.environ | ({"LD_LIBRARY_PATH": str(library)} if library else {})
        self._command = [str(binary), *args]
        self._log = log
        self._process: subprocess.Popen | None = None
        self._buffer = b""

    def ask(self, case: str, n: int, timeout: float) -> dict:
        """The runner's answer. A hang or a crash is answered by a skip with that reason."""
        if self._process is None:
            self._start()
        os.kill(self._process.pid, signal.SIGCONT)
        try:
            self._process.stdin.write(f"{case} {n}\n".encode())
            self._process.stdin.flush()
            line = self._read_line(timeout)
        except TimeoutError:
            self.close()
            return {"skip": f"no answer within {timeout:.0f} s", "hung": True}
        except (EOFError, BrokenPipeError):
            code = self._process.wait()
            self.close()
            return {"skip": f"the runner died (status {code}); see {self._log.name}"}
        os.kill(self._process.pid, signal.SIGSTOP)
        if self._library and f" {self._library.resolve()}/" not in Path(f"/proc/{self._process.pid}/maps").read_text():
            raise RuntimeError(f"{self._command[0]} did not load its library from {self._library}")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process, whatever state it is in. A later ask starts a new one."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process, self._buffer = None, b""

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0, env=self._env
            )

    def _read_line(self, timeout: float) -> bytes:
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError
            data = os.read(self._process.stdout.fileno(), 65536)
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
