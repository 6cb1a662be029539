"""A CUDA device simulated on CPU tensors, behind ``lazytrace.testing.simulate()``."""
