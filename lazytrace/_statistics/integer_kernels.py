# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""The kernel of 64-bit integers: exact range and sum, and deviations in float64."""

from __future__ import annotations

import triton
import triton.language as tl

from lazytrace._statistics.kernels import _elements, _range, _vectors


@triton.jit
def _distance(x, anchor):
    """x - anchor in float64, exact where an int64 holds it, rounded once where it does not."""
    difference = x - anchor
    wrapped = ((x ^ anchor) & (x ^ difference)) < 0
    return tl.where(wrapped, x.to(tl.float64) - anchor.to(tl.float64), difference.to(tl.float64))


@triton.jit
def lazytrace_integer64_statistics(
    table,
    programs,
    records,
    FLIP: tl.constexpr,
    ROWS: tl.constexpr,
    VECTOR: tl.constexpr,
    MASKED: tl.constexpr,
):
    """64-bit integers. FLIP is the sign bit for unsigned ones, which are then int64 in order.

    Sums are kept in 32-bit halves; distances are from an element of the range, so that large
    numbers close together keep their differences. Not MASKED: whole tiles of contiguous memory.
    """
    TILE: tl.constexpr = ROWS * VECTOR
    job, begin, stop, record = _range(table, programs, records)
    memory = tl.load(job).to(tl.pointer_type(tl.int64))
    _, offset, inside = _elements(job, begin, begin + 1, ROWS)
    held = tl.load(memory + offset, mask=inside, other=0) ^ FLIP
    anchor = tl.sum(tl.where(inside, held, 0), 0)
    lows = tl.full((ROWS,), (1 << 63) - 1, tl.int64)
    highs = tl.full((ROWS,), -(1 << 63), tl.int64)
    uppers = tl.zeros((ROWS,), tl.int64)
    lowers = tl.zeros((ROWS,), tl.int64)
    sums = tl.zeros((ROWS,), tl.float64)
    squares = tl.zeros((ROWS,), tl.float64)
    zeros = tl.zeros((ROWS,), tl.int32)
    for start in range(begin, stop, ROWS if MASKED else TILE):
        if MASKED:
            _, offset, inside = _elements(job, start, stop, ROWS)
            x = tl.load(memory + offset, mask=inside, other=0) ^ FLIP
            x = tl.where(inside, x, anchor)
            lows = tl.minimum(lows, x)
            highs = tl.maximum(highs, x)
            uppers += tl.where(inside, x >> 32, 0)
            lowers += tl.where(inside, x & 0xFFFFFFFF, 0)
            distance = _distance(x, anchor)
            sums += distance
            squares += distance * distance
            zeros += (inside & (x == FLIP)).to(tl.int32)
        else:
            x = tl.load(_vectors(memory, start, ROWS, VECTOR)) ^ FLIP
            lows = tl.minimum(lows, tl.min(x, 1))
            highs = tl.maximum(highs, tl.max(x, 1))
            uppers += tl.sum(x >> 32, 1)
            lowers += tl.sum(x & 0xFFFFFFFF, 1)
            distance = _distance(x, anchor)
            sums += tl.sum(distance, 1)
            squares += tl.sum(distance * distance, 1)
            zeros += tl.sum((x == FLIP).to(tl.int32), 1)
    n = stop - begin
    sum_ = tl.sum(sums, 0)
    m2 = tl.maximum(tl.sum(squares, 0) - sum_ * (sum_ / n.to(tl.float64)), 0.0)
    tl.store(record, n)
    tl.store(record + 1, tl.sum(zeros.to(tl.int64), 0))
    tl.store(record + 7, tl.min(lows, 0))
    tl.store(record + 8, tl.max(highs, 0))
    tl.store(record + 9, tl.sum(uppers, 0))
    tl.store(record + 10, m2.to(tl.int64, bitcast=True))
    tl.store(record + 11, tl.sum(lowers, 0))
