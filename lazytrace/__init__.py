"""Traces Triton kernel launches with their arguments, also inside CUDA graph capture."""
