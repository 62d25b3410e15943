"""stage_subgraph_on_cpu of engine.data.smart_stage with PyTorch's tensors, on the software device."""

import pytest

from small_files import one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import numpy as np
import torch

import engine

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}


def seen(parse, rows=8, **options):
    """What an op on the device got in each step, copied back."""
    with engine.Engine(workers=1, devices=["software"]) as eng:
        weights, got = engine.value([0], name="weights", engine=eng), []

        @engine.op
        def parsed(row):
            return parse(row)

        @engine.op(updates="weights", place=engine.gpu(0))
        def train(weights, batch):
            got.append(batch)

        @engine.op(updates="weights", outputs=1)
        def count(weights):
            return len(got)

        def step(row):
            train(weights, parsed(row))
            return count(weights)

        steps = engine.data.smart_stage(step, iter(range(rows)), stage_subgraph_on_cpu=True, engine=eng, **options)
        assert [n.get() for n in steps] == list(range(1, rows + 1))
        return [[x.to_host() if isinstance(x, engine.DeviceArray) else x for x in batch] for batch in got]


@pytest.mark.parametrize("options", [AT_ONCE, {"do_smart_stage": False}, {"profile_steps": 2, "guard_steps": 2}])
def test_tensors_on_the_cpu_cross_as_arrays_do(options):
    def parse(row):
        x = torch.arange(12, dtype=torch.float32).reshape(3, 4) + row
        return [x, x.T, x.bool(), torch.nn.Parameter(x), torch.arange(5), x.half(), np.full(3, row)]

    for row, batch in enumerate(seen(parse, **options)):
        for there, here in zip(batch, parse(row), strict=True):
            here = here.detach().numpy() if isinstance(here, torch.Tensor) else here
            assert isinstance(there, np.ndarray) and there.dtype == here.dtype and np.array_equal(there, here)


def test_a_tensor_of_another_device_passes():
    (batch,) = seen(lambda row: [torch.empty(3, device="meta")], 1, **AT_ONCE)
    assert batch[0].device.type == "meta"


@pytest.mark.parametrize("made", [torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3, 3).to_sparse()])
def test_a_tensor_that_cannot_cross_is_an_error_and_never_passes_uncopied(made):
    with pytest.raises(TypeError, match="BFloat16|[Ss]parse"):
        seen(lambda row: [made], 1, **AT_ONCE)
