"""Which line of the program a call comes from."""

from __future__ import annotations

import linecache
import re
import sys
from pathlib import Path

import torch
from torch.fx import Node

_LINE = re.compile(r'File "([^"]+)", line (\d+), in ([^\n]*)\n\s*([^\n]*)')
PACKAGES = tuple(str(Path(p).parent) + "/" for p in (torch.__file__, __file__))
_NO_FILES = ("<eval_with_key>", "<frozen ", "<torch_package", "<__array_function__")  # code that libraries make


def is_torch(file: str) -> bool:
    """Whether a file is of torch or of this package, and not of the program, which may have none (``<stdin>``, ``<string>``)."""
    return file.startswith(PACKAGES) or file.startswith(_NO_FILES)


def line_of(node: Node) -> tuple[str, int, str]:
    """The program's line that the node comes from: file, number, text. Empty where the capture does not know."""
    if "engine_line" in node.meta:
        return node.meta["engine_line"]
    found = [(f, int(n), text.strip()) for f, n, _, text in _LINE.findall(node.meta.get("stack_trace") or "")]
    for file, number, text in reversed(found):
        if not is_torch(file):
            return file, number, text
    return found[-1] if found else ("", 0, "")


def line_of_caller() -> tuple[str, int, str]:
    """The program's line that has called the caller's caller."""
    frame = sys._getframe(2)
    while frame.f_back and is_torch(frame.f_code.co_filename):
        frame = frame.f_back
    file, number = frame.f_code.co_filename, frame.f_lineno
    return file, number, linecache.getline(file, number).strip()
