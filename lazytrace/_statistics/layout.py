"""The fewest dimensions that describe a view's memory, and the way back to its row-major index."""

from __future__ import annotations

from math import prod

import attrs

from lazytrace._statistics.region import Region


@attrs.frozen
class Layout:
    """A view without the dimensions that repeat it, adjacent ones joined.

    ``shape``, ``strides`` (elements) and ``weights`` are outermost first. The sum of coordinate
    times weight is the row-major index, in the whole view, of the element's first occurrence.
    Each element occurs ``repeats`` times.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    weights: tuple[int, ...]
    repeats: int

    @property
    def numel(self) -> int:
        """The number of distinct coordinates: logical elements over ``repeats``."""
        return prod(self.shape)


def layout_of(region: Region) -> Layout:
    """The region's layout; a region without elements has one dimension of size 0."""
    shape: list[int] = []
    strides: list[int] = []
    weights: list[int] = []
    repeats = 1
    weight = 1
    for size, stride in zip(reversed(region.shape), reversed(region.strides), strict=True):
        if size == 0:
            return Layout((0,), (1,), (1,), 1)
        if size == 1:
            continue
        if stride == 0:
            repeats *= size
        elif shape and stride == strides[-1] * shape[-1] and weight == weights[-1] * shape[-1]:
            shape[-1] *= size
        else:
            shape.append(size)
            strides.append(stride)
            weights.append(weight)
        weight *= size
    return Layout(tuple(shape[::-1]), tuple(strides[::-1]), tuple(weights[::-1]), repeats)


def spanned_elements(layout: Layout) -> int:
    """Elements from the layout's first to its last, inclusive; 0 where there are none."""
    if layout.numel == 0:
        return 0
    steps = zip(layout.shape, layout.strides, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)


def reading_cost(region: Region) -> int:
    """The bytes that a reading touches: an expanded view costs what lies beneath it."""
    return layout_of(region).numel * region.element_size
