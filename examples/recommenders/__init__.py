"""Five recommendation models in PyTorch, the files that they train on, and the input pipeline in front of them."""
