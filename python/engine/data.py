"""What a step reads, made ahead of it: stages (docs/stages.md).

    for batch in engine.data.staged(read("train.csv"), capacity=4): train(batch)
    for loss in engine.data.smart_stage(step, read("train.csv"), capacity=4): ...
"""

from ._core import stage_lane
from .graphs import mark_target_node
from .smart import SmartStage, SmartStageOptions, smart_stage
from .stages import PrefetchHook, Stage, make_prefetch_hook, stage_pool, stage_pools, staged

__all__ = [
    "PrefetchHook", "SmartStage", "SmartStageOptions", "Stage", "make_prefetch_hook", "mark_target_node",
    "smart_stage", "stage_lane", "stage_pool", "stage_pools", "staged",
]  # fmt: skip
