"""What is printed while a model trains."""

from __future__ import annotations

import sys
import time
from typing import Any

from .reader import Batch

EVERY = 5.0  # seconds between two lines, where tqdm is not installed


class Progress:
    """A bar, or lines, with the loss, rows a second, and how many rows were malformed and values unknown. It reads a loss only
    when it prints one, because on a GPU that waits for the device."""

    def __init__(self, name: str, start: int, steps: int, rows: int) -> None:
        self.name, self.steps, self.rows, self.done, self.start = name, steps, rows, start, start
        self.malformed = self.unknown = 0
        self.began = self._told = time.perf_counter()
        self.seconds = 0.0
        self._bar: Any = None
        if sys.stderr.isatty():
            try:
                import tqdm

                self._bar = tqdm.tqdm(total=steps, initial=start, desc=name, unit="step")
            except ImportError:
                pass

    def told(self, batch: Batch) -> None:
        """Adds the malformed rows and unknown values that the batch counts."""
        self.malformed += batch.malformed
        self.unknown += batch.unknown

    def stepped(self, loss: Any) -> None:
        self.done += 1
        if self._bar:
            self._bar.update()
        now = time.perf_counter()
        if now - self._told < EVERY:
            return
        self._told = now
        pace = (self.done - self.start) * self.rows / (now - self.began)
        text = f"loss {float(loss):.4f}, {pace:,.0f} rows/s, {self.malformed} malformed, {self.unknown} unknown"
        if self._bar:
            self._bar.set_postfix_str(text)
        else:
            print(f"{self.name}: step {self.done} of {self.steps}: {text}", file=sys.stderr, flush=True)

    def end(self) -> None:
        self.seconds = time.perf_counter() - self.began
        if self._bar:
            self._bar.close()
