"""Random programs in Python, each run by the engine and by plain Python; README.md says what is in them."""
