"""For tests of programs that use the engine. For a software device: ``engine.Engine(devices=["software"])``."""

from ._core import plant_loopback_fault

__all__ = ["plant_loopback_fault"]
