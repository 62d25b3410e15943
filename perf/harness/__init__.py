"""What compare.py is made of: the plan of a suite, the runners' processes, the arithmetic, the report."""
