"""The first bytes of a view's elements, row-major, as blocks of its memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs

from lazytrace._capture.views import TensorView


@attrs.frozen
class Block:
    """Rows of memory: ``rows`` times ``width`` bytes, each ``pitch`` bytes behind the one before.

    One row has the pitch 0.
    """

    address: int
    width: int
    rows: int = 1
    pitch: int = 0


def total_bytes(view: TensorView) -> int:
    """The bytes of the view's logical elements; stride-0 dimensions multiply."""
    return view.numel * view.element_size


def kept_bytes(view: TensorView, limit: int) -> int:
    """How many of them a limit leaves: whole elements."""
    return min(total_bytes(view), limit - limit % view.element_size)


def blocks(view: TensorView, limit: int) -> Iterator[Block]:
    """The memory that holds the first ``kept_bytes(view, limit)`` bytes, in their order."""
    left = kept_bytes(view, limit)
    width, *outer = _merged(view)
    size, _ = width
    rows, pitch = outer.pop(0) if outer else (1, 0)
    if pitch < size:  # rows that repeat or overlap are no block
        outer.insert(0, (rows, pitch))
        rows, pitch = 1, 0
    for number in itertools.count():
        if left <= 0:
            return
        address = view.data_ptr + _offset(number, outer)
        whole = min(rows, left // size)
        if whole:
            yield Block(address, size, whole, pitch if whole > 1 else 0)
            left -= whole * size
        if whole < rows and left:
            yield Block(address + whole * pitch, left)
            return


def _merged(view: TensorView) -> list[tuple[int, int]]:
    """Sizes and steps in bytes of the fewest dimensions, innermost first: that of bytes."""
    merged = [(view.element_size, 1)]
    for size, stride in zip(reversed(view.shape), reversed(view.strides)):
        step = stride * view.element_size
        inner_size, inner_step = merged[-1]
        if size == 1:
            continue
        if step == inner_size * inner_step:
            merged[-1] = (size * inner_size, inner_step)
        else:
            merged.append((size, step))
    return merged


def _offset(number: int, dimensions: Sequence[tuple[int, int]]) -> int:
    """How far, in bytes, the block with this row-major number lies behind the view's first."""
    offset = 0
    for size, step in dimensions:
        number, coordinate = divmod(number, size)
        offset += coordinate * step
    return offset
