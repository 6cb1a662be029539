"""Values at the launch itself: statistics kernels beside the program's own, and their slots."""
