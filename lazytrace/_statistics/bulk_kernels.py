# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""The bulk kernel of numbers: whole tiles of contiguous memory, without masks.

Elements of at most 32 bits are worked on in float32: sums of distances from the mean so far. Up
to 16 elements are summed before a float64 accumulator takes over, and a stretch is never longer
than what came before it, so that its mean is near by the data's own deviation. What is not finite,
or outside the arithmetic's range, shows in the sum of squares. The program then leaves its range to
the exact kernel, which runs after it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lazytrace._statistics.kernels import (
    _NO_INDEX,
    _decode,
    _float64,
    _merged,
    _range,
    _store_float,
    _vectors,
)


@triton.jit
def lazytrace_bulk_statistics(
    table,
    programs,
    records,
    IN: tl.constexpr,
    FORMAT: tl.constexpr,
    COMPUTE: tl.constexpr,
    INTEGRAL: tl.constexpr,
    ROWS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Whole tiles of contiguous memory; a count of -1 in the record asks for the exact kernel."""
    SMALLEST: tl.constexpr = 2.0**-400 if tl.float64 == COMPUTE else 2.0**-40
    # float64 has no minimum instruction, so wide integers are compared as they are.
    WIDE: tl.constexpr = INTEGRAL and tl.float64 == COMPUTE
    ORDERED: tl.constexpr = IN if WIDE else COMPUTE
    TOP: tl.constexpr = (1 << 31) - 1 if tl.int32 == IN else (1 << 32) - 1
    BOTTOM: tl.constexpr = -(1 << 31) if tl.int32 == IN else 0
    MOST: tl.constexpr = TOP if WIDE else float("inf")
    LEAST: tl.constexpr = BOTTOM if WIDE else float("-inf")
    TILE: tl.constexpr = ROWS * VECTOR
    job, position, stop, record = _range(table, programs, records)
    memory = tl.load(job).to(tl.pointer_type(IN))
    n = tl.zeros((), tl.int64)
    zero = n
    total = n
    no_scale = tl.zeros((), tl.int32)
    low = tl.full((), MOST, ORDERED)
    high = tl.full((), LEAST, ORDERED)
    m2 = _float64(0.0)
    x = _decode(tl.load(_vectors(memory, position, ROWS, VECTOR)), FORMAT, COMPUTE)
    mean = tl.sum(tl.sum(x, 1).to(tl.float64), 0) / TILE
    while position < stop:
        tiles = tl.minimum((stop - position) // TILE, tl.maximum(n // TILE, 1))
        center = tl.floor(mean) if INTEGRAL else mean
        center = center.to(COMPUTE)
        lows = tl.full((ROWS,), MOST, ORDERED)
        highs = tl.full((ROWS,), LEAST, ORDERED)
        sums = tl.zeros((ROWS,), tl.float64)
        squares = tl.zeros((ROWS,), tl.float64)
        zeros = tl.zeros((ROWS,), tl.int32)
        for tile in range(tiles):
            pointers = _vectors(memory, position + tile * TILE, ROWS, VECTOR)
            raw = tl.load(pointers)
            x = _decode(raw, FORMAT, COMPUTE)
            distance = x - center
            ordered = raw if WIDE else x
            lows = tl.minimum(lows, tl.min(ordered, 1))
            highs = tl.maximum(highs, tl.max(ordered, 1))
            sums += tl.sum(distance, 1).to(tl.float64)
            squares += tl.sum(distance * distance, 1).to(tl.float64)
            zeros += tl.sum((ordered == 0).to(tl.int32), 1)
        part_low = tl.min(lows, 0)
        part_high = tl.max(highs, 0)
        square = tl.sum(squares, 0)
        is_out_of_range = square - square != 0
        part_n = tiles * TILE
        if not INTEGRAL:
            reach = tl.maximum(tl.abs(part_low - center), tl.abs(part_high - center))
            is_out_of_range |= (reach < SMALLEST) & (reach > 0)
        if INTEGRAL:
            whole = tl.sum(sums.to(tl.int64), 0)
            total += whole + part_n * center.to(tl.int64)
            sum_ = whole.to(tl.float64)
        else:
            sum_ = tl.sum(sums, 0)
        part_mean = sum_ / part_n.to(tl.float64)
        part_m2 = tl.maximum(square - sum_ * part_mean, _float64(0.0))
        part_mean += center.to(tl.float64)
        n, mean, m2, _ = _merged(n, mean, m2, no_scale, part_n, part_mean, part_m2, no_scale, False)
        low = tl.minimum(low, part_low)
        high = tl.maximum(high, part_high)
        zero += tl.sum(zeros, 0).to(tl.int64)
        position += part_n
        if is_out_of_range:
            n = n * 0 - 1
            position = stop
    _store_float(
        record, n, zero, zero * 0, zero * 0, zero * 0, zero * 0 + _NO_INDEX, no_scale,
        low.to(tl.float64), high.to(tl.float64), mean, m2, total,
    )  # fmt: skip
