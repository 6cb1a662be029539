# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""One program's share of a launch's node: loading any dtype, and the partial record."""

from __future__ import annotations

import triton
import triton.language as tl

from lazytrace._statistics.integer_kernels import _distance
from lazytrace._statistics.kernels import _decode

PARTIAL_WORDS = tl.constexpr(12)
_DIMS = tl.constexpr(6)
_NO_INDEX = tl.constexpr((1 << 63) - 1)
_FIRST_INTEGER = tl.constexpr(16)
_FIRST_COMPLEX = tl.constexpr(32)
_SIGN = tl.constexpr(-(1 << 63))


@triton.jit
def _load(address, offset, inside, KIND: tl.constexpr):
    """Elements, and the tensor's first element: one wait for both."""
    pointer = address.to(tl.pointer_type(KIND))
    return tl.load(pointer + offset, mask=inside, other=0), tl.load(pointer)


@triton.jit
def _load_float(address, code, offset, inside):
    """Elements of a floating-point code, and the tensor's first one, as float64."""
    if code == 0:
        x, center = _load(address, offset, inside, tl.float32)
        x = x.to(tl.float64)
        center = center.to(tl.float64)
    elif code == 1:
        x, center = _load(address, offset, inside, tl.bfloat16)
        x = x.to(tl.float64)
        center = center.to(tl.float64)
    elif code == 2:
        x, center = _load(address, offset, inside, tl.float16)
        x = x.to(tl.float64)
        center = center.to(tl.float64)
    elif code == 3:
        x, center = _load(address, offset, inside, tl.float64)
    else:
        x, center = _load_float8(address, code, offset, inside)
    return x, center


@triton.jit
def _load_float8(address, code, offset, inside):
    raw, first = _load(address, offset, inside, tl.uint8)
    if code == 4:
        x = _decode(raw, "float8_e4m3fn", tl.float64)
        center = _decode(first, "float8_e4m3fn", tl.float64)
    elif code == 5:
        x = _decode(raw, "float8_e5m2", tl.float64)
        center = _decode(first, "float8_e5m2", tl.float64)
    elif code == 6:
        x = _decode(raw, "float8_e4m3fnuz", tl.float64)
        center = _decode(first, "float8_e4m3fnuz", tl.float64)
    elif code == 7:
        x = _decode(raw, "float8_e5m2fnuz", tl.float64)
        center = _decode(first, "float8_e5m2fnuz", tl.float64)
    else:
        x = _decode(raw, "float8_e8m0fnu", tl.float64)
        center = _decode(first, "float8_e8m0fnu", tl.float64)
    return x, center


@triton.jit
def _load_integer(address, code, offset, inside):
    """Elements of an integer code, and the first one, as int64; uint64 with its sign flipped."""
    if code == 16:
        x, center = _load(address, offset, inside, tl.int8)
        x = x.to(tl.int64)
        center = center.to(tl.int64)
    elif code == 17:
        x, center = _load(address, offset, inside, tl.uint8)
        x = x.to(tl.int64)
        center = center.to(tl.int64)
    elif code == 18:
        x, center = _load(address, offset, inside, tl.int16)
        x = x.to(tl.int64)
        center = center.to(tl.int64)
    elif code == 19:
        x, center = _load(address, offset, inside, tl.uint16)
        x = x.to(tl.int64)
        center = center.to(tl.int64)
    elif code == 20:
        x, center = _load(address, offset, inside, tl.int32)
        x = x.to(tl.int64)
        center = center.to(tl.int64)
    elif code == 21:
        x, center = _load(address, offset, inside, tl.uint32)
        x = x.to(tl.int64)
        center = center.to(tl.int64)
    elif code == 22:
        x, center = _load(address, offset, inside, tl.int64)
    elif code == 23:
        x, center = _load(address, offset, inside, tl.int64)
        x ^= _SIGN
        center ^= _SIGN
    else:
        x, center = _load(address, offset, inside, tl.uint8)
        x = (x != 0).to(tl.int64)
        center = (center != 0).to(tl.int64)
    return x, center


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
    real, _ = _load_float(address, part, 2 * offset, inside)
    imag, _ = _load_float(address, part, 2 * offset + 1, inside)
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
def _join_floats(low, high, sum_, square, zero, bad, low2, high2, sum2, square2, zero2, bad2):
    return (
        tl.minimum(low, low2),
        tl.maximum(high, high2),
        sum_ + sum2,
        square + square2,
        zero + zero2,
        bad + bad2,
    )


@triton.jit
def _join_integers(
    low, high, sum_, square, zero, up, down, low2, high2, sum2, square2, zero2, up2, down2
):
    return (
        tl.minimum(low, low2),
        tl.maximum(high, high2),
        sum_ + sum2,
        square + square2,
        zero + zero2,
        up + up2,
        down + down2,
    )


@triton.jit
def _bits(value):
    return value.to(tl.int64, bitcast=True)


@triton.jit
def _store_partial(partial, zero, bad, low, high, sum_, square, up, down):
    tl.store(partial, zero.to(tl.int64))
    tl.store(partial + 1, bad.to(tl.int64))
    tl.store(partial + 2, low)
    tl.store(partial + 3, high)
    tl.store(partial + 4, sum_)
    tl.store(partial + 5, square)
    tl.store(partial + 6, up)
    tl.store(partial + 7, down)


@triton.jit
def _elements(address, code, signs, row, rank, number, stop):
    """Elements by number as float64 (of complex ones, nothing), the first one, and their flags."""
    inside = number < stop
    offset, index = _place(row, rank, number)
    if code >= _FIRST_COMPLEX:
        flags = _complex_flags(address, code, offset, inside, signs)
        x = flags.to(tl.float64) * 0.0
        center = tl.zeros((), tl.float64)
        flags = tl.where(inside, flags, 0)
        bad = (flags & 7) != 0
        zero = (flags & 8) != 0
    else:
        x, center = _load_float(address, code, offset, inside)
        center = tl.where(center - center == 0, center, 0.0)
        bad = inside & (x - x != 0)
        zero = inside & (x == 0)
    return x, center, bad, zero, inside, index


@triton.jit
def _float_partial(address, code, rank, signs, row, partial, begin, stop, SUB: tl.constexpr):
    lane = tl.arange(0, SUB).to(tl.int64)
    lows = tl.full((SUB,), float("inf"), tl.float64)
    highs = tl.full((SUB,), float("-inf"), tl.float64)
    sums = tl.zeros((SUB,), tl.float64)
    squares = tl.zeros((SUB,), tl.float64)
    zeros = tl.zeros((SUB,), tl.int32)
    bads = tl.zeros((SUB,), tl.int32)
    origin = tl.zeros((), tl.float64)
    for start in range(begin, stop, SUB):
        x, center, bad, zero, inside, _ = _elements(
            address, code, signs, row, rank, start + lane, stop
        )
        origin = center
        ok = inside & (bad == 0)
        lows = tl.minimum(lows, tl.where(ok, x, float("inf")))
        highs = tl.maximum(highs, tl.where(ok, x, float("-inf")))
        distance = tl.where(ok, x - center, 0.0)
        sums += distance
        squares += distance * distance
        zeros += zero.to(tl.int32)
        bads += bad.to(tl.int32)
    low, high, sum_, square, zero, bad = tl.reduce(
        (lows, highs, sums, squares, zeros, bads), 0, _join_floats
    )
    nothing = tl.zeros((), tl.int64)
    _store_partial(
        partial, zero, bad, _bits(low), _bits(high), _bits(sum_), _bits(square),
        _bits(origin), nothing,
    )  # fmt: skip
    if bad > 0:
        _classify(address, code, rank, signs, row, partial, begin, stop, SUB)


@triton.jit
def _classify(address, code, rank, signs, row, partial, begin, stop, SUB: tl.constexpr):
    """What is not finite, by kind, and the first of it: a second look that is seldom needed."""
    lane = tl.arange(0, SUB).to(tl.int64)
    nan = tl.zeros((), tl.int64)
    posinf = nan
    neginf = nan
    first = nan + _NO_INDEX
    for start in range(begin, stop, SUB):
        number = start + lane
        inside = number < stop
        offset, index = _place(row, rank, number)
        if code >= _FIRST_COMPLEX:
            flags = _complex_flags(address, code, offset, inside, signs)
        else:
            x, _ = _load_float(address, code, offset, inside)
            flags = _flags(x)
        flags = tl.where(inside, flags, 0)
        nan += tl.sum(flags & 1, 0).to(tl.int64)
        posinf += tl.sum((flags >> 1) & 1, 0).to(tl.int64)
        neginf += tl.sum((flags >> 2) & 1, 0).to(tl.int64)
        first = tl.minimum(first, tl.min(tl.where((flags & 7) != 0, index, _NO_INDEX), 0))
    tl.store(partial + 8, nan)
    tl.store(partial + 9, posinf)
    tl.store(partial + 10, neginf)
    tl.store(partial + 11, first)


@triton.jit
def _integer_partial(address, code, rank, row, partial, begin, stop, SUB: tl.constexpr):
    lane = tl.arange(0, SUB).to(tl.int64)
    nil = tl.where(code == 23, _SIGN, 0).to(tl.int64)
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
        x, center = _load_integer(address, code, offset, inside)
        x = tl.where(inside, x, center)
        lows = tl.minimum(lows, x)
        highs = tl.maximum(highs, x)
        uppers += tl.where(inside, x >> 32, 0)
        lowers += tl.where(inside, x & 0xFFFFFFFF, 0)
        distance = _distance(x, center)
        sums += distance
        squares += distance * distance
        zeros += (inside & (x == nil)).to(tl.int32)
    low, high, sum_, square, zero, up, down = tl.reduce(
        (lows, highs, sums, squares, zeros, uppers, lowers), 0, _join_integers
    )
    nothing = tl.zeros((), tl.int64)
    _store_partial(partial, zero, nothing, low, high, _bits(sum_), _bits(square), up, down)
