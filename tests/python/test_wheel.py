"""The installed package: what its metadata says, what it brings along, what it leaves alone. `./run wheel` runs these on a wheel; in
the tree of a build, which is not installed, those about metadata are left out."""

import importlib.metadata
import pathlib
import re
import shutil
import sys
import sysconfig

import pytest

import engine

ROOT = pathlib.Path(engine.__file__).parent
GPU = ("libcudart", "libcuda.", "libnccl", "libcupti", "libmpi")
MAPPED = "print(*sorted({line.split()[-1] for line in open('/proc/self/maps') if '.so' in line}), sep='\\n')\n"


@pytest.fixture
def installed():
    """The distribution that the imported package belongs to."""
    try:
        found = importlib.metadata.distribution("engine")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed")
    if pathlib.Path(found.locate_file("engine")).resolve() != ROOT.resolve():
        pytest.skip(f"another engine is installed than {ROOT}")
    return found


def test_the_metadata_says_what_the_package_is(installed):
    said = installed.metadata
    assert engine.__version__.split("+")[0] == installed.version
    assert said["License-Expression"] == "Apache-2.0" and said["Summary"] and said["Description-Content-Type"] == "text/markdown"
    assert "LICENSE" in said.get_all("License-File")
    assert f"Programming Language :: Python :: 3.{sys.version_info[1]}" in said.get_all("Classifier")
    needed = [line for line in installed.requires or [] if "extra ==" not in line]
    assert not needed, "the package itself needs nothing"


def test_extras_bring_what_their_parts_import(installed):
    def brings(extra):
        lines = [line for line in installed.requires if re.search(rf"extra == ['\"]{extra}['\"]", line)]
        return {re.match(r"[\w-]+(\[\w+\])?", line)[0] for line in lines}

    assert brings("torch") == {"torch"}
    assert brings("plot") == {"matplotlib", "rich"}
    assert brings("demo") == {"numpy", "matplotlib", "tqdm", "threadpoolctl"}
    assert brings("cuda") == {"nvidia-cuda-runtime"} and brings("nccl") == {"engine[cuda]", "nvidia-nccl-cu13"}
    assert brings("test") == {"numpy", "pytest"}
    assert set(installed.metadata.get_all("Provides-Extra")) == {"torch", "plot", "demo", "cuda", "nccl", "test"}


def test_it_carries_its_own_tbb_and_the_license_of_that(installed, run_python):
    ended = run_python("engine.push(int); engine.wait_all()\n" + MAPPED)
    tbb = [pathlib.Path(path) for path in ended.out.splitlines() if "tbb" in path]
    assert [path.resolve() for path in tbb] == [ROOT.resolve() / "libengine_tbb.so"], ended
    assert (ROOT / "libengine_tbb.LICENSE.txt").exists()


def test_importing_loads_no_library_of_a_gpu(run_python):
    ended = run_python("engine.push(int); engine.wait_all()\n" + MAPPED)
    assert "libstdc++" in ended.out, ended
    assert not [path for path in ended.out.splitlines() if any(name in path for name in GPU)]


def test_a_device_whose_runtime_is_broken_says_so_where_it_is_asked_for(run_python, tmp_path):
    some = next(line.split()[-1] for line in open("/proc/self/maps") if "/libm.so" in line or "/libm-" in line)
    for name in ("libcudart.so.12", "libcudart.so.13"):
        shutil.copy(some, tmp_path / name)
    program = """
        try:
            engine.init(devices=["cuda"])
        except Exception as error:
            print(type(error).__name__, error)
        print(engine.op(lambda: 1)().get())
    """
    ended = run_python(program, LD_LIBRARY_PATH=str(tmp_path))
    if "this build has no CUDA backend" in ended.out:
        pytest.skip("built without CUDA's headers")
    assert ended.out.startswith("DeviceError "), ended
    assert re.search(r"the CUDA runtime cannot be used: \S+/libcudart\.so\.1\d lacks .*cudaSetDevice", ended.out), ended
    assert ended.out.endswith("\n1\n"), ended  # and the engine works as without one


def test_a_part_whose_package_is_missing_names_it(run_python):
    ended = run_python("""
        sys.modules.update({"matplotlib": None, "rich": None})
        step = engine.hybridize(lambda x: engine.op(abs)(x))
        step(-1).get()
        step.profile(-1)
        told = engine.explain(step)
        for part in (lambda: told.picture("plan.png"), lambda: engine.live().__enter__()):
            try:
                part()
            except engine.UsageError as error:
                print(error)
    """)
    assert len(re.findall(r"pip install (matplotlib|rich)", ended.out)) == 2, ended


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has its GIL")
def test_a_free_threaded_python_has_its_gil_back_and_says_so(run_python):
    ended = run_python("print(sys._is_gil_enabled())", PYTHON_GIL="")
    assert ended.out == "True\n" and "GIL" in ended.err and "engine._core" in ended.err, ended
