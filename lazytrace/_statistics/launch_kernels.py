# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""The kernel that reads all tensors of one launch in one node, and finishes by itself.

A node is rows in device memory, one a tensor, of 64-bit words: ``address, numel, code, rank,
signs, 0``, then (innermost dimension first) ``size, stride, weight`` for each of
at most 5. Rank 0 is row-major contiguous memory. The grid is (programs a tensor, tensors).

Each program writes a partial record; the last of a tensor's programs to finish merges them into
the tensor's slot and counts the replay. Sums are of distances from the tensor's first element,
in float64 or 64-bit integers, so partial records simply add up, in one order always.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lazytrace._statistics.kernels import _decode, _distance

ROW_WORDS = tl.constexpr(24)
PARTIAL_WORDS = tl.constexpr(12)
SLOT_WORDS = tl.constexpr(16)
_DIMS = tl.constexpr(6)
_NO_INDEX = tl.constexpr((1 << 63) - 1)
_FIRST_INTEGER = tl.constexpr(16)
_FIRST_COMPLEX = tl.constexpr(32)
_SIGN = tl.constexpr(-(1 << 63))


@triton.jit
def _load(address, offset, inside, KIND: tl.constexpr):
    return tl.load(address.to(tl.pointer_type(KIND)) + offset, mask=inside, other=0)


@triton.jit
def _load_float(address, code, offset, inside):
    """Elements of a floating-point code as float64."""
    if code == 0:
        x = _load(address, offset, inside, tl.float32).to(tl.float64)
    elif code == 1:
        x = _load(address, offset, inside, tl.bfloat16).to(tl.float64)
    elif code == 2:
        x = _load(address, offset, inside, tl.float16).to(tl.float64)
    elif code == 3:
        x = _load(address, offset, inside, tl.float64)
    else:
        raw = _load(address, offset, inside, tl.uint8)
        if code == 4:
            x = _decode(raw, "float8_e4m3fn", tl.float64)
        elif code == 5:
            x = _decode(raw, "float8_e5m2", tl.float64)
        elif code == 6:
            x = _decode(raw, "float8_e4m3fnuz", tl.float64)
        elif code == 7:
            x = _decode(raw, "float8_e5m2fnuz", tl.float64)
        else:
            x = _decode(raw, "float8_e8m0fnu", tl.float64)
    return x


@triton.jit
def _load_integer(address, code, offset, inside):
    """Elements of an integer code as int64; uint64 with its sign bit flipped."""
    if code == 16:
        x = _load(address, offset, inside, tl.int8).to(tl.int64)
    elif code == 17:
        x = _load(address, offset, inside, tl.uint8).to(tl.int64)
    elif code == 18:
        x = _load(address, offset, inside, tl.int16).to(tl.int64)
    elif code == 19:
        x = _load(address, offset, inside, tl.uint16).to(tl.int64)
    elif code == 20:
        x = _load(address, offset, inside, tl.int32).to(tl.int64)
    elif code == 21:
        x = _load(address, offset, inside, tl.uint32).to(tl.int64)
    elif code == 22:
        x = _load(address, offset, inside, tl.int64)
    elif code == 23:
        x = _load(address, offset, inside, tl.int64) ^ _SIGN
    else:
        x = (_load(address, offset, inside, tl.uint8) != 0).to(tl.int64)
    return x


@triton.jit
def _flags(x):
    """Bits: 1 NaN, 2 positive infinity, 4 negative infinity, 8 zero."""
    bad = x - x != 0
    flags = tl.where(x != x, 1, 0)
    flags |= tl.where(bad & (x > 0), 2, 0) | tl.where(bad & (x < 0), 4, 0)
    return flags | tl.where(x == 0, 8, 0)


@triton.jit
def _complex_flags(address, code, offset, inside, signs):
    """The flags of whole complex elements: zero where both parts are, the rest where either is."""
    part = code - _FIRST_COMPLEX
    real = _load_float(address, part, 2 * offset, inside)
    imag = _load_float(address, part, 2 * offset + 1, inside)
    left = _flags(tl.where((signs & 1) != 0, -real, real))
    right = _flags(tl.where((signs & 2) != 0, -imag, imag))
    return ((left | right) & 7) | (left & right & 8)


@triton.jit
def _place(row, rank, number):
    """Offsets in memory, and row-major indices, of elements by number."""
    offset = number
    index = number
    if rank > 0:
        rest = number
        offset = number * 0
        index = number * 0
        for axis in range(rank):
            entry = row + _DIMS + axis * 3
            size = tl.load(entry)
            next_rest = rest // size
            coordinate = rest - next_rest * size
            offset += coordinate * tl.load(entry + 1)
            index += coordinate * tl.load(entry + 2)
            rest = next_rest
    return offset, index


@triton.jit
def _store_partial(partial, zero, nan, posinf, neginf, first, low, high, sum_, square, up, down):
    tl.store(partial, zero)
    tl.store(partial + 1, nan)
    tl.store(partial + 2, posinf)
    tl.store(partial + 3, neginf)
    tl.store(partial + 4, first)
    tl.store(partial + 5, low)
    tl.store(partial + 6, high)
    tl.store(partial + 7, sum_.to(tl.int64, bitcast=True))
    tl.store(partial + 8, square.to(tl.int64, bitcast=True))
    tl.store(partial + 9, up)
    tl.store(partial + 10, down)


@triton.jit
def _float_partial(row, partial, begin, stop, SUB: tl.constexpr):
    address = tl.load(row)
    code = tl.load(row + 2)
    rank = tl.load(row + 3).to(tl.int32)
    signs = tl.load(row + 4)
    is_complex = code >= _FIRST_COMPLEX
    lane = tl.arange(0, SUB).to(tl.int64)
    start = tl.zeros((1,), tl.int64)
    is_number = start + code < _FIRST_COMPLEX
    center = _load_float(address, tl.where(is_complex, 0, code), start, is_number)
    center = tl.sum(tl.where(center - center == 0, center, 0.0), 0)
    lows = tl.full((SUB,), float("inf"), tl.float64)
    highs = tl.full((SUB,), float("-inf"), tl.float64)
    sums = tl.zeros((SUB,), tl.float64)
    squares = tl.zeros((SUB,), tl.float64)
    zeros = tl.zeros((SUB,), tl.int32)
    nans = tl.zeros((SUB,), tl.int32)
    posinfs = tl.zeros((SUB,), tl.int32)
    neginfs = tl.zeros((SUB,), tl.int32)
    firsts = tl.full((SUB,), _NO_INDEX, tl.int64)
    for start in range(begin, stop, SUB):
        number = start + lane
        inside = number < stop
        offset, index = _place(row, rank, number)
        if is_complex:
            flags = _complex_flags(address, code, offset, inside, signs)
            x = tl.zeros((SUB,), tl.float64)
        else:
            x = _load_float(address, code, offset, inside)
            flags = _flags(x)
        flags = tl.where(inside, flags, 0)
        ok = inside & ((flags & 7) == 0)
        lows = tl.minimum(lows, tl.where(ok, x, float("inf")))
        highs = tl.maximum(highs, tl.where(ok, x, float("-inf")))
        distance = tl.where(ok, x - center, 0.0)
        sums += distance
        squares += distance * distance
        zeros += flags >> 3
        nans += flags & 1
        posinfs += (flags >> 1) & 1
        neginfs += (flags >> 2) & 1
        firsts = tl.minimum(firsts, tl.where((flags & 7) != 0, index, _NO_INDEX))
    nothing = tl.zeros((), tl.int64)
    _store_partial(
        partial,
        tl.sum(zeros, 0).to(tl.int64),
        tl.sum(nans, 0).to(tl.int64),
        tl.sum(posinfs, 0).to(tl.int64),
        tl.sum(neginfs, 0).to(tl.int64),
        tl.min(firsts, 0),
        tl.min(lows, 0).to(tl.int64, bitcast=True),
        tl.max(highs, 0).to(tl.int64, bitcast=True),
        tl.sum(sums, 0),
        tl.sum(squares, 0),
        center.to(tl.int64, bitcast=True),
        nothing,
    )


@triton.jit
def _integer_partial(row, partial, begin, stop, SUB: tl.constexpr):
    address = tl.load(row)
    code = tl.load(row + 2)
    rank = tl.load(row + 3).to(tl.int32)
    lane = tl.arange(0, SUB).to(tl.int64)
    start = tl.zeros((1,), tl.int64)
    center = tl.sum(_load_integer(address, code, start, start == 0), 0)
    zero = tl.where(code == 23, _SIGN, 0).to(tl.int64)
    lows = tl.full((SUB,), (1 << 63) - 1, tl.int64)
    highs = tl.full((SUB,), -(1 << 63), tl.int64)
    sums = tl.zeros((SUB,), tl.float64)
    squares = tl.zeros((SUB,), tl.float64)
    uppers = tl.zeros((SUB,), tl.int64)
    lowers = tl.zeros((SUB,), tl.int64)
    zeros = tl.zeros((SUB,), tl.int32)
    for start in range(begin, stop, SUB):
        number = start + lane
        inside = number < stop
        offset, _ = _place(row, rank, number)
        x = tl.where(inside, _load_integer(address, code, offset, inside), center)
        lows = tl.minimum(lows, x)
        highs = tl.maximum(highs, x)
        uppers += tl.where(inside, x >> 32, 0)
        lowers += tl.where(inside, x & 0xFFFFFFFF, 0)
        distance = _distance(x, center)
        sums += distance
        squares += distance * distance
        zeros += (inside & (x == zero)).to(tl.int32)
    nothing = tl.zeros((), tl.int64)
    _store_partial(
        partial,
        tl.sum(zeros, 0).to(tl.int64),
        nothing,
        nothing,
        nothing,
        nothing + _NO_INDEX,
        tl.min(lows, 0),
        tl.max(highs, 0),
        tl.sum(sums, 0),
        tl.sum(squares, 0),
        tl.sum(uppers, 0),
        tl.sum(lowers, 0),
    )


@triton.jit
def _gather(partials, program, inside, FIELD: tl.constexpr, other):
    pointers = partials + program * PARTIAL_WORDS + FIELD
    return tl.load(pointers, mask=inside, other=other, cache_modifier=".cg")


@triton.jit
def _total(partials, program, inside, FIELD: tl.constexpr):
    return tl.sum(_gather(partials, program, inside, FIELD, 0), 0)


@triton.jit
def _float_total(partials, program, inside, FIELD: tl.constexpr):
    return tl.sum(_gather(partials, program, inside, FIELD, 0).to(tl.float64, bitcast=True), 0)


@triton.jit
def _finish(row, slot, partials, programs, MOST: tl.constexpr):
    """The last program's work. Slot: replay, first bad replay and its index, then statistics."""
    program = tl.arange(0, MOST)
    inside = program < programs
    nan = _total(partials, program, inside, 1)
    posinf = _total(partials, program, inside, 2)
    neginf = _total(partials, program, inside, 3)
    first = tl.min(_gather(partials, program, inside, 4, _NO_INDEX), 0)
    lows = _gather(partials, program, inside, 5, 0)
    highs = _gather(partials, program, inside, 6, 0)
    code = tl.load(row + 2)
    if (code >= _FIRST_INTEGER) & (code < _FIRST_COMPLEX):
        low = tl.min(tl.where(inside, lows, (1 << 63) - 1), 0)
        high = tl.max(tl.where(inside, highs, -(1 << 63)), 0)
        up = _total(partials, program, inside, 9)
    else:
        low = tl.min(tl.where(inside, lows.to(tl.float64, bitcast=True), float("inf")), 0)
        high = tl.max(tl.where(inside, highs.to(tl.float64, bitcast=True), float("-inf")), 0)
        low = low.to(tl.int64, bitcast=True)
        high = high.to(tl.int64, bitcast=True)
        up = tl.max(tl.where(program == 0, _gather(partials, program, inside, 9, 0), _SIGN), 0)
    replay = tl.load(slot) + 1
    bad = nan + posinf + neginf
    bad_replay = tl.load(slot + 1)
    is_news = (bad_replay == 0) & (bad > 0)
    tl.store(slot + 1, tl.where(is_news, replay, bad_replay))
    tl.store(slot + 2, tl.where(is_news, first, tl.load(slot + 2)))
    tl.store(slot + 3, _total(partials, program, inside, 0))
    tl.store(slot + 4, nan)
    tl.store(slot + 5, posinf)
    tl.store(slot + 6, neginf)
    tl.store(slot + 7, first)
    tl.store(slot + 8, low)
    tl.store(slot + 9, high)
    tl.store(slot + 10, _float_total(partials, program, inside, 7).to(tl.int64, bitcast=True))
    tl.store(slot + 11, _float_total(partials, program, inside, 8).to(tl.int64, bitcast=True))
    tl.store(slot + 12, up)
    tl.store(slot + 13, _total(partials, program, inside, 10))
    tl.store(slot, replay)


@triton.jit
def lazytrace_launch_statistics(
    rows, slots, partials, counters, programs, SUB: tl.constexpr, MOST: tl.constexpr
):
    """All tensors of one launch; a counter is 0 between launches. ``programs``: at most MOST."""
    program = tl.program_id(0)
    tensor = tl.program_id(1)
    words = rows.to(tl.int64).to(tl.pointer_type(tl.int64))
    row = words + tensor * ROW_WORDS
    mine = partials.to(tl.int64).to(tl.pointer_type(tl.int64)) + tensor * programs * PARTIAL_WORDS
    numel = tl.load(row + 1)
    code = tl.load(row + 2)
    blocks = tl.cdiv(tl.cdiv(numel, SUB), programs)
    begin = program.to(tl.int64) * blocks * SUB
    stop = tl.minimum(begin + blocks * SUB, numel)
    partial = mine + program * PARTIAL_WORDS
    if (code >= _FIRST_INTEGER) & (code < _FIRST_COMPLEX):
        _integer_partial(row, partial, begin, stop, SUB)
    else:
        _float_partial(row, partial, begin, stop, SUB)
    # All of the program's stores come before its count, and the last program's loads after it.
    tl.debug_barrier()
    counter = counters.to(tl.int64).to(tl.pointer_type(tl.int32)) + tensor
    if tl.atomic_add(counter, 1, sem="acq_rel") == programs - 1:
        slot = slots.to(tl.int64).to(tl.pointer_type(tl.int64)) + tensor * SLOT_WORDS
        _finish(row, slot, mine, programs, MOST)
        tl.store(counter, 0)
