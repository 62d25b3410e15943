"""The adapter, which is compiled on first use; and what happens where it cannot be."""

import pytest
import torch
from support import compiled, same
from torch import nn

from engine.torch import adapter


@pytest.fixture
def no_adapter(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    adapter.load.cache_clear()
    yield monkeypatch
    adapter.load.cache_clear()


def test_without_a_compiler_calls_are_pythons_with_one_warning(no_adapter):
    no_adapter.setenv("PATH", "")
    no_adapter.delenv("CXX", raising=False)
    model = nn.Linear(4, 4)
    with pytest.warns(UserWarning, match="called from Python.*no C\\+\\+ compiler") as told:
        ours = [compiled(m) for m in (model, nn.Sequential(model, nn.ReLU()))]
        x = torch.ones(2, 4)
        for _ in range(30):
            same(ours[0](x), model(x))
            same(ours[1](x), model(x).relu())
    assert len([w for w in told if "called from Python" in str(w.message)]) == 1


def test_a_compiler_that_fails_is_quoted(no_adapter, tmp_path):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    broken.chmod(0o755)
    no_adapter.setenv("CXX", str(broken))
    with pytest.warns(UserWarning, match="no such header"):
        assert adapter.load() is None


def test_it_is_kept_for_this_torch_and_this_python():
    adapter.load()
    folder = adapter.cache_folder()
    assert torch.__version__ in folder.name and list(folder.iterdir())
