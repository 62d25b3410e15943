"""What is set around a call: C's answer tells apart what Python's does, and leaves what is unusual to Python."""

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from engine.torch import adapter, numerics


@contextlib.contextmanager
def put(get, set_, value):
    before = get()
    set_(value)
    try:
        yield
    finally:
        set_(before)


def precision(op):
    of = getattr(torch.backends.mkldnn, op)
    return put(lambda: of.fp32_precision, lambda value: setattr(of, "fp32_precision", value), "bf16")


SETTINGS = {
    "no gradients": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu"),
    "another type of autocast": lambda: torch.autocast("cpu", torch.float16),
    "precision of products": lambda: precision("matmul"),
    "precision of convolutions": lambda: precision("conv"),
    "precision of recurrent layers": lambda: precision("rnn"),
    "default type": lambda: put(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": lambda: put(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "oneDNN": lambda: put(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, False),
    "flash": lambda: put(torch._C._get_flash_sdp_enabled, torch._C._set_sdp_use_flash, False),
    "math": lambda: put(torch._C._get_math_sdp_enabled, torch._C._set_sdp_use_math, False),
    "efficient": lambda: put(torch._C._get_mem_efficient_sdp_enabled, torch._C._set_sdp_use_mem_efficient, False),
    "cuDNN": lambda: put(torch._C._get_cudnn_sdp_enabled, torch._C._set_sdp_use_cudnn, False),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_setting_is_told_apart_by_both(setting):
    native = adapter.load()
    before, by_python = native.around(), numerics._around()
    with SETTINGS[setting]():
        assert native.around() not in (before, None)
        assert numerics._around() != by_python
        assert numerics.around() == native.around()
    assert native.around() == before and numerics._around() == by_python


@contextlib.contextmanager
def transform():
    torch._C._functorch._vmap_increment_nesting(2, "error")
    try:
        yield
    finally:
        torch._C._functorch._vmap_decrement_nesting()


class Sees(TorchFunctionMode):
    pass


class SeesAll(TorchDispatchMode):
    pass


@pytest.mark.parametrize("around", [
    torch.inference_mode, torch.autograd.detect_anomaly, Sees, SeesAll, transform,
    lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
], ids=["inference", "anomalies", "a mode", "a mode of the dispatcher", "a transform", "hooks of saved tensors"])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Anomaly")
def test_what_sees_each_call_is_asked_for_by_python(around):
    with around():
        assert adapter.load().around() is None and numerics.around() is None
    assert numerics.around() is not None


def test_a_default_device_is_told_by_python():
    with torch.device("meta"):
        assert adapter.load().around() is None
        assert torch.device("meta") in numerics.around()
