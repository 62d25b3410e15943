"""What engine.mxnet refuses, with packages that only look like mxnet, and what comes with the package: without MXNet's wheel."""

import os
import pathlib
import subprocess

import pytest

import engine


@pytest.fixture
def fake(tmp_path):
    def make(version="1.9.1", library=b"\x7fELF", libinfo=None):
        folder = tmp_path / "site" / "mxnet"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        if libinfo != b"":
            (folder / "libinfo.py").write_bytes(libinfo or f'__version__ = "{version}"\n'.encode())
        if library is not None:
            (folder / "libmxnet.so").write_bytes(library)
        return {"PYTHONPATH": os.pathsep.join([str(folder.parent), str(pathlib.Path(engine.__file__).parent.parent)])}

    return make


def refusal(run_python, program, **env):
    ended = run_python(program, **env)
    assert ended.code == 1, ended
    return ended.err.strip().splitlines()[-1]


def test_mxnet_imported_first_is_refused(run_python, fake):
    said = refusal(run_python, "import mxnet\nimport engine.mxnet", **fake())
    assert said.startswith("engine.errors.UsageError: import engine.mxnet before mxnet"), said


def test_another_version_is_refused(run_python, fake):
    said = refusal(run_python, "import engine.mxnet", **fake(version="2.0.0"))
    assert said.endswith("is 2.0.0; 1.9.1 is what this engine knows"), said


@pytest.mark.parametrize("library", [None, b"", b"not a library"])
def test_a_broken_wheel_is_refused(run_python, fake, library):
    said = refusal(run_python, "import engine.mxnet", **fake(library=library))
    assert "is broken" in said and "libmxnet.so" in said, said


def test_a_wheel_without_its_version_file_is_refused(run_python, fake):
    said = refusal(run_python, "import engine.mxnet", **fake(libinfo=b""))
    assert "is broken" in said and "libinfo.py" in said, said


def test_a_version_file_that_is_no_text_is_refused(run_python, fake):
    said = refusal(run_python, "import engine.mxnet", **fake(libinfo=b"\xff\xfe\x00 no text"))
    assert said.endswith("is of an unknown version; 1.9.1 is what this engine knows"), said


def test_no_mxnet_is_said(run_python, fake):
    said = refusal(run_python, "import importlib.util\nimportlib.util.find_spec = lambda name: None\nimport engine.mxnet")
    assert said == "ModuleNotFoundError: engine.mxnet: mxnet 1.9.1 is not installed; pip install mxnet==1.9.1", said


@pytest.mark.parametrize("variable, value, allowed", [
    ("MXNET_ENGINE_TYPE", "FastEngine", "ThreadedEnginePerDevice, ThreadedEngine, NaiveEngine and"),
    ("MXNET_CPU_WORKER_NTHREADS", "many", "a number from 1 to 4096"),
    ("MXNET_CPU_PRIORITY_NTHREADS", "0", "a number from 1 to 4096"),
])  # fmt: skip
def test_variables_with_other_values_are_refused(run_python, fake, variable, value, allowed):
    said = refusal(run_python, "import engine.mxnet\nengine.mxnet.init()", **fake(), **{variable: value})
    assert f"{variable} is '{value}'" in said and allowed in said, said


def test_an_unknown_engine_type_is_refused_by_the_import_also_without_init(run_python, fake):
    said = refusal(run_python, "import engine.mxnet\nprint('goes on')", **fake(), MXNET_ENGINE_TYPE="FastEngine")
    assert said.startswith("engine.errors.UsageError: MXNET_ENGINE_TYPE is 'FastEngine'; allowed are"), said


def test_init_is_refused_once_there_is_an_engine(run_python, fake):
    said = refusal(run_python, "import engine.mxnet\nengine.push(print)\nengine.mxnet.init(workers=2)", **fake())
    assert "engine.mxnet.init: the default engine is already running" in said, said


def test_init_takes_the_number_of_workers_from_mxnets_variable(run_python, fake):
    env = fake()
    program = "import engine.mxnet\nengine.mxnet.init()\nprint(engine.default().workers, engine.default().policy[0])"
    assert run_python(program, **env).out == "1 threaded\n"
    assert run_python(program, MXNET_CPU_WORKER_NTHREADS="3", **env).out == "3 threaded\n"
    assert run_python(program, MXNET_ENGINE_TYPE="NaiveEngine", **env).out == "1 naive\n"
    assert run_python(program, MXNET_ENGINE_TYPE="inline", **env).out == "1 inline\n"
    assert run_python(program.replace("init()", "init(workers=2, pools={'disk': 1})"), **env).out == "2 threaded\n"


def test_preloading_and_importing_at_once_is_refused(run_python, fake, mxnet_library):
    said = refusal(run_python, "import engine.mxnet", LD_PRELOAD=mxnet_library, **fake())
    assert "preload that library or import engine.mxnet, not both" in said, said


def test_libraries_of_the_wheel_come_with_the_package(mxnet_library):
    shown = subprocess.run(["nm", "-D", "--defined-only", mxnet_library], capture_output=True, text=True)
    if shown.returncode:
        pytest.skip("no nm on this machine")
    assert shown.stdout.count(" T _ZN5mxnet6engine") == 3, shown.stdout
