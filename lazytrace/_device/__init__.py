"""The device as lazytrace uses it: an interface, and CUDA behind it."""
