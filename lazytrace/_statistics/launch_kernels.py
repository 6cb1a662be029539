# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""The kernel that reads all tensors of one launch in one node, and finishes by itself.

A node has rows, one a tensor, of 64-bit words in device memory: ``address, numel, code, rank,
signs, 0``, then (innermost dimension first) ``size, stride, weight`` for each of at most 6. Rank
0 is row-major contiguous memory; up to four rows of that kind come as parameters instead, which
saves the wait for them. The grid is (programs a tensor, tensors).

Each program writes a partial record; the last of a tensor's programs to finish merges them into
the tensor's slot and counts the replay. Sums are of distances from the tensor's first element,
in float64 or 64-bit integers, so partial records simply add up, in one order always.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lazytrace._statistics.launch_partial_kernels import (
    _FIRST_COMPLEX,
    _FIRST_INTEGER,
    _NO_INDEX,
    PARTIAL_WORDS,
    _bits,
    _float_partial,
    _integer_partial,
    _join_floats,
    _join_integers,
)

ROW_WORDS = tl.constexpr(24)
SLOT_WORDS = tl.constexpr(16)


@triton.jit
def _gather(partials, program, inside, FIELD: tl.constexpr, other):
    pointers = partials + program * PARTIAL_WORDS + FIELD
    return tl.load(pointers, mask=inside, other=other, cache_modifier=".cg")


@triton.jit
def _store_slot(slot, zero, low, high, sum_, square, up, down):
    tl.store(slot + 3, zero)
    tl.store(slot + 8, low)
    tl.store(slot + 9, high)
    tl.store(slot + 10, _bits(sum_))
    tl.store(slot + 11, _bits(square))
    tl.store(slot + 12, up)
    tl.store(slot + 13, down)


@triton.jit
def _finish(code, slot, partials, programs, MOST: tl.constexpr):
    """The last program's work. Slot: replay, first bad replay and its index, then statistics."""
    program = tl.arange(0, MOST)
    inside = program < programs
    replay = tl.load(slot) + 1
    zeros = _gather(partials, program, inside, 0, 0)
    lows = _gather(partials, program, inside, 2, 0)
    highs = _gather(partials, program, inside, 3, 0)
    sums = _gather(partials, program, inside, 4, 0).to(tl.float64, bitcast=True)
    squares = _gather(partials, program, inside, 5, 0).to(tl.float64, bitcast=True)
    if (code >= _FIRST_INTEGER) & (code < _FIRST_COMPLEX):
        _finish_integers(slot, partials, program, inside, zeros, lows, highs, sums, squares)
    else:
        _finish_floats(slot, partials, program, inside, zeros, lows, highs, sums, squares, replay)
    tl.store(slot, replay)


@triton.jit
def _finish_integers(slot, partials, program, inside, zeros, lows, highs, sums, squares):
    lows = tl.where(inside, lows, (1 << 63) - 1)
    highs = tl.where(inside, highs, -(1 << 63))
    ups = _gather(partials, program, inside, 6, 0)
    downs = _gather(partials, program, inside, 7, 0)
    low, high, sum_, square, zero, up, down = tl.reduce(
        (lows, highs, sums, squares, zeros, ups, downs), 0, _join_integers
    )
    _store_slot(slot, zero, low, high, sum_, square, up, down)


@triton.jit
def _finish_floats(slot, partials, program, inside, zeros, lows, highs, sums, squares, replay):
    lows = tl.where(inside, lows.to(tl.float64, bitcast=True), float("inf"))
    highs = tl.where(inside, highs.to(tl.float64, bitcast=True), float("-inf"))
    bads = _gather(partials, program, inside, 1, 0)
    # The first program has elements, so the tensor's first one is known to it.
    center = tl.load(partials + 6, cache_modifier=".cg")
    low, high, sum_, square, zero, bad = tl.reduce(
        (lows, highs, sums, squares, zeros, bads), 0, _join_floats
    )
    _store_slot(slot, zero, _bits(low), _bits(high), sum_, square, center, center)
    _finish_bad(slot, partials, program, inside & (bads > 0), replay, bad)


@triton.jit
def _finish_bad(slot, partials, program, has_bad, replay, bad):
    nan = tl.zeros((), tl.int64)
    posinf = nan
    neginf = nan
    first = nan + _NO_INDEX
    if bad > 0:
        nan = tl.sum(_gather(partials, program, has_bad, 8, 0), 0)
        posinf = tl.sum(_gather(partials, program, has_bad, 9, 0), 0)
        neginf = tl.sum(_gather(partials, program, has_bad, 10, 0), 0)
        first = tl.min(_gather(partials, program, has_bad, 11, _NO_INDEX), 0)
        if tl.load(slot + 1) == 0:
            tl.store(slot + 1, replay)
            tl.store(slot + 2, first)
    tl.store(slot + 4, nan)
    tl.store(slot + 5, posinf)
    tl.store(slot + 6, neginf)
    tl.store(slot + 7, first)
    tl.store(slot + 14, bad)


@triton.jit
def lazytrace_launch_statistics(
    rows, slots, partials, counters, programs, codes,
    address0, numel0, address1, numel1, address2, numel2, address3, numel3,
    INLINE: tl.constexpr, SUB: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """All tensors of one launch; a counter is 0 between launches. ``programs``: at most MOST.

    INLINE: no rows; ``codes`` has a byte a tensor.
    """
    program = tl.program_id(0)
    tensor = tl.program_id(1)
    row = rows.to(tl.int64).to(tl.pointer_type(tl.int64)) + tensor * ROW_WORDS
    if INLINE:
        address = tl.where(tensor == 0, address0, address1).to(tl.int64)
        address = tl.where(tensor == 2, address2, address).to(tl.int64)
        address = tl.where(tensor == 3, address3, address).to(tl.int64)
        numel = tl.where(tensor == 0, numel0, numel1).to(tl.int64)
        numel = tl.where(tensor == 2, numel2, numel).to(tl.int64)
        numel = tl.where(tensor == 3, numel3, numel).to(tl.int64)
        code = (codes.to(tl.int64) >> (8 * tensor)) & 0xFF
        rank: tl.constexpr = 0
        signs = code * 0
    else:
        address = tl.load(row)
        numel = tl.load(row + 1)
        code = tl.load(row + 2)
        rank = tl.load(row + 3).to(tl.int32)
        signs = tl.load(row + 4)
    mine = partials.to(tl.int64).to(tl.pointer_type(tl.int64)) + tensor * programs * PARTIAL_WORDS
    blocks = tl.cdiv(tl.cdiv(numel, SUB), programs)
    begin = program.to(tl.int64) * blocks * SUB
    stop = tl.minimum(begin + blocks * SUB, numel)
    partial = mine + program * PARTIAL_WORDS
    if (code >= _FIRST_INTEGER) & (code < _FIRST_COMPLEX):
        _integer_partial(address, code, rank, row, partial, begin, stop, SUB)
    else:
        _float_partial(address, code, rank, signs, row, partial, begin, stop, SUB)
    # All of the program's stores come before its count, and the last program's loads after it.
    tl.debug_barrier()
    counter = counters.to(tl.int64).to(tl.pointer_type(tl.int32)) + tensor
    if tl.atomic_add(counter, 1, sem="acq_rel") == programs - 1:
        slot = slots.to(tl.int64).to(tl.pointer_type(tl.int64)) + tensor * SLOT_WORDS
        _finish(code, slot, mine, programs, MOST)
        tl.store(counter, 0)
