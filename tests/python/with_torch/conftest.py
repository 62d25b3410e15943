"""Tests of engine.torch. Skipped, with the reason, where torch is not installed."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(autouse=True)
def calm():
    """One thread for eager's kernels, so that its sums are those of a node; no graphs of other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def forced(monkeypatch):
    """forced(mode): all that is compiled from now on runs in this mode; what was compiled since the first call of it changes to it, too."""
    from engine.torch.modes import Choice

    made, choices = Choice.__post_init__, []

    def force(mode):
        def hold_at_once(self):
            made(self)
            self.hold(mode)
            choices.append(self)

        monkeypatch.setattr(Choice, "__post_init__", hold_at_once)
        for choice in choices:
            choice.hold(mode)

    return force
