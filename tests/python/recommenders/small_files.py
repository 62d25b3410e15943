"""What the tests of the recommenders share."""

SCALE = 0.001  # of the real cardinalities
