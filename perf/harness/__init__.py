"""The parts of compare.py: the plan of a suite, the runners' processes, the arithmetic, the report."""
