"""The adapter: C++ that calls torch's operators without the interpreter. Compiled on first use and kept, because it needs
the headers of the torch that is installed; the wheel holds its source only."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

import torch

from .. import _core

SOURCES = Path(__file__).parent / "adapter"
NAME = "engine_torch_adapter"
SERVING = "serve.cc"


class NoAdapter(Exception):
    """Why there is no adapter."""


def cache_folder() -> Path:
    """Where compiled adapters are kept: one for each version of torch, Python, the sources and this file, which has the command."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".h", ".cc"):
            digest.update(source.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    abi = "cxx11" if torch.compiled_with_cxx11_abi() else "old"
    version = f"{torch.__version__}-{abi}-{sys.implementation.cache_tag}-{platform.machine()}"
    return root / "engine" / f"torch-{version}-{digest.hexdigest()[:16]}"


def compiler() -> str:
    """The path of a C++ compiler: $CXX, or the first of c++, g++ and clang++ that is there."""
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        if found := shutil.which(name):
            return found
    raise NoAdapter("there is no C++ compiler: $CXX, c++, g++ or clang++")


def command(output: Path, source: str = "module.cc") -> list[str]:
    base = Path(torch.__file__).parent
    include = [f"-isystem{base / 'include'}", f"-I{sysconfig.get_path('include')}"]
    libraries = [f"-L{base / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    # The adapter's results are those of torch's kernels, to the bit; those of a server need not be. Nobody asks for floating-point
    # exceptions; with them GCC 12 would make no vectors of loops that choose, such as Exp's, without the masks of AVX-512.
    arithmetic = ["-fno-trapping-math", "-fno-math-errno"] if source == SERVING else ["-ffp-contract=off"]
    flags = ["-std=c++20", "-O3", *arithmetic, "-fPIC", "-shared", "-fvisibility=hidden", abi]
    return [compiler(), *flags, *include, str(SOURCES / source), *libraries, "-o", str(output)]


def build(output: Path, source: str = "module.cc") -> None:
    """Compiles the adapter. Processes that do so at the same time put equal files in the same place."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        made = Path(folder) / output.name
        done = subprocess.run(command(made, source), capture_output=True, text=True)
        if done.returncode != 0:
            raise NoAdapter(f"the compiler failed:\n{' '.join(done.args)}\n{done.stderr[-2000:]}")
        os.replace(made, output)


def _loaded(name: str, source: str) -> ModuleType:
    path = cache_folder() / f"{name}{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}"
    if not path.exists():
        build(path, source)
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@functools.cache
def load_serving() -> ModuleType:
    """The part that serves models, a module of its own. NoAdapter, OSError or ImportError where it cannot be had."""
    return _loaded("engine_torch_serving", SERVING)


@functools.cache
def load() -> ModuleType | None:
    """The adapter, or None, after one warning, where it cannot be had: then programs run as Python calls."""
    try:
        module = _loaded(NAME, "module.cc")
        module.connect(_core.native_table())
    except (NoAdapter, OSError, ImportError) as error:
        warnings.warn(f"engine.torch: operators are called from Python, on one thread, because {error}", stacklevel=2)
        return None
    return module
