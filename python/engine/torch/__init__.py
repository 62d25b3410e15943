"""PyTorch on the engine."""

from .ahead import plain
from .smart_stage import SmartStage, smart_stage
from .team import set_intra_op_threads

__all__ = ["SmartStage", "plain", "set_intra_op_threads", "smart_stage"]
