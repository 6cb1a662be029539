"""Statistics of tensor views, read from raw memory: one engine for CUDA, one for the CPU."""

from lazytrace._statistics.layout import reading_cost
from lazytrace._statistics.region import Region, UnsupportedDtype

__all__ = ["Region", "UnsupportedDtype", "reading_cost"]
