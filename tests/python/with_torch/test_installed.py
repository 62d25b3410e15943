"""The backend by its name, as torch finds it in an installed package that nobody has imported."""

import subprocess
import sys
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no pyproject.toml")
ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys, torch
model = torch.nn.Linear(2, 1)
assert "engine" in torch._dynamo.list_backends() and "engine.torch" not in sys.modules
ours = torch.compile(model, backend="engine", options={"workers": 1})
assert torch.equal(ours(torch.ones(1, 2)), model(torch.ones(1, 2)))
import engine.torch
from torch._dynamo.backends.registry import _COMPILER_FNS
assert _COMPILER_FNS["engine"] is engine.torch.backend
(told,) = engine.torch.explain(ours)
assert told.plans, told
try:
    torch.compile(model, backend="engine", options={"policies": 1})(torch.ones(3, 2))
except Exception as error:
    print(error)
"""


def test_an_installed_package_has_the_backend_by_its_name(tmp_path):
    with open(ROOT / "pyproject.toml", "rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]
    info = tmp_path / "engine-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: engine\nVersion: 0.1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in of.items()) for group, of in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}){PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no option 'policies'" in done.stdout
