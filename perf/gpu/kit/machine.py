"""What the kit finds on the machine: driver, cards, CUDA, NCCL and PyTorch of its Python packages. Installs and loads nothing."""

import ctypes.util
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

FIELDS = ("name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.mem", "temperature.gpu", "pstate")
PACKAGES = ("torch", "cupy-cuda13x", "numpy", "triton", "nvidia-cuda-runtime", "nvidia-nccl-cu13", "nvidia-cublas")


def _say(*command: str, timeout: float = 20) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def cards() -> list[dict]:
    """One dictionary a card, of what nvidia-smi says; empty without it."""
    said = _say("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader")
    return [dict(zip(FIELDS, (v.strip() for v in line.split(",")))) for line in said.splitlines()]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def nccl(kit: Path) -> str:
    """libnccl.so.2 of the kit's own folder, of a Python package, or of the system; empty without one."""
    packages = [Path(folder) / "nvidia" / "nccl" / "lib" for folder in sys.path]
    for folder in [kit / "lib", *packages]:
        if (folder / "libnccl.so.2").exists():
            return str(folder / "libnccl.so.2")
    return ctypes.util.find_library("nccl") or ""


def sanitizer() -> str:
    """compute-sanitizer, where it is: on the path, in a toolkit, or in a Python package (nvidia-cuda-sanitizer-api)."""
    toolkits = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    toolkits += sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    places = [toolkit / folder / "compute-sanitizer" for toolkit in toolkits for folder in ("bin", "compute-sanitizer")]
    places += [at for folder in sys.path for at in Path(folder).glob("nvidia/*/**/compute-sanitizer")]
    runs = lambda at: at.is_file() and os.access(at, os.X_OK)  # noqa: E731
    return shutil.which("compute-sanitizer") or next((str(at) for at in places if runs(at)), "")


def python(version: str) -> str:
    """An interpreter of the version that the kit's package was built for; empty without one, or without the package."""
    for candidate in (sys.executable, shutil.which(f"python{version}")):
        # Asked, not believed: the name may be a launcher's, which finds no such version behind it.
        if version and candidate and _say(candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])") == version:
            return candidate
    return ""


def torch(interpreter: str) -> str:
    """The version of the interpreter's PyTorch; empty if that is built for CPUs alone, or if NumPy or pyarrow is missing."""
    asked = "from importlib.metadata import version as v; print(v('numpy') and v('pyarrow') and v('torch'))"
    found = _say(interpreter, "-c", asked) if interpreter else ""
    return "" if found.endswith("+cpu") else found


def find(kit: Path, made: dict) -> dict:
    """All of it. `probe` is what the kit's own program says of CUDA; `why` is not empty where nothing can be measured."""
    out = {
        "cards": cards(),
        "cpu": next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                     if line.startswith("model name")), platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "packages": {p: v for p in PACKAGES if (v := _version(p))},
        "nccl": nccl(kit),
        "sanitizer": sanitizer(),
        "python": python(made["python"]),
    }  # fmt: skip
    out["torch"] = torch(out["python"])
    try:
        done = subprocess.run([str(kit / "bin" / "gpu_suite"), "--probe"], capture_output=True, text=True, timeout=120)
        out["probe"] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError) as error:
        return out | {"probe": {}, "why": f"the kit's programs do not run here: {error}"}
    except json.JSONDecodeError:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return out | {"probe": {}, "why": f"the kit's programs do not run here: {said}"}
    probe = out["probe"]
    why = ""
    if 0 < probe["driver"] < probe["runtime"]:
        why = f"the driver is too old: it is for CUDA {_dotted(probe['driver'])}, the kit needs {_dotted(probe['runtime'])}"
    elif not probe["devices"]:
        why = f"no GPU: {probe['why']}"
    return out | {"why": why}


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def lines(found: dict) -> list[str]:
    """For people."""
    probe = found["probe"]
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    cards_of = [f"{c['name']}, {c['memory.total']}, driver {c['driver_version']}" for c in found["cards"]]
    out = [f"card: {c}" for c in cards_of] or ["card: nvidia-smi says nothing"]
    if probe:
        out.append(f"CUDA: {probe['devices']} devices ({probe['description'] or probe['why']})")
    return out + [
        f"NCCL: {found['nccl'] or 'none: the parts that need it are left out'}",
        f"Python packages: {packages or 'none of those that the kit looks for'}",
        f"compute-sanitizer: {found['sanitizer'] or 'none'}",
        f"host: {found['cpu']}, {found['cores']} cores, {found['libc']}",
    ]
