"""Tests of engine.torch. Skipped, with the reason, where torch is not installed."""

import gc

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(autouse=True, scope="session")
def modules_are_no_garbage():
    """A capture may collect garbage, and most of what Python then looks at is what torch has imported: half of a small capture's time."""
    from engine.torch import stand_ins

    let_go = stand_ins._let_go

    def seeing_all(fakes):
        gc.unfreeze()  # gc.get_referrers finds no cache that is frozen
        let_go(fakes)
        gc.freeze()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stand_ins, "_let_go", seeing_all)
        gc.collect()
        gc.freeze()
        yield
        gc.unfreeze()


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
