from unittest import SkipTest

__all__ = ["SkipTest"]
