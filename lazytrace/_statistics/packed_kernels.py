# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""Bulk kernels for elements of one and two bytes, several of which share each instruction.

A 1-byte type moves four times as many elements through the same bandwidth as float32, and the
arithmetic for each no longer fits. Compute capability 9.0 has two-element minimum, maximum and
conversion, and four-element dot products: PTX, one 32-bit word at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lazytrace._statistics.kernels import (
    _NO_INDEX,
    _float64,
    _merged,
    _range,
    _store_float,
    _vectors,
)

UNROLL = tl.constexpr(4)

# Operands: 0 low, 1 high, 2 nonzeros, 3 sum, 4 squares; of the word 5, the center 6, and the
# low 7, high 8 and nonzeros 9 so far. Nonzeros count in two halves, or (bytes) in one whole.
_HALVES = """
{
.reg .b32 low, high, count, one;
.reg .f32 a, b;
min.%(pair)s low, $7, $5;
max.%(pair)s high, $8, $5;
and.b32 count, $5, 0x7fff7fff;
mov.b32 one, 0x00010001;
min.u16x2 count, count, one;
add.u32 count, count, $9;
%(unpack)s
sub.f32 a, a, $6;
sub.f32 b, b, $6;
add.f32 $3, a, b;
mul.f32 a, a, a;
fma.rn.f32 $4, b, b, a;
mov.b32 $0, low;
mov.b32 $1, high;
mov.b32 $2, count;
}
"""
_BF16 = tl.constexpr(
    _HALVES
    % {
        "pair": "bf16x2",
        "unpack": """{
.reg .b32 l, h;
shl.b32 l, $5, 16;
and.b32 h, $5, 0xffff0000;
mov.b32 a, l;
mov.b32 b, h;
}""",
    }
)
_F16 = tl.constexpr(
    _HALVES
    % {
        "pair": "f16x2",
        "unpack": """{
.reg .f16 l, h;
mov.b32 {l, h}, $5;
cvt.f32.f16 a, l;
cvt.f32.f16 b, h;
}""",
    }
)
_FLOAT8 = """
{
.reg .b32 low, high, count, p, q;
.reg .b16 i, j;
.reg .f16 l, h;
.reg .f32 a, b, c, d, s, t;
mov.b32 {i, j}, $5;
cvt.rn.f16x2.%(kind)sx2 p, i;
cvt.rn.f16x2.%(kind)sx2 q, j;
min.f16x2 low, $7, p;
min.f16x2 low, low, q;
max.f16x2 high, $8, p;
max.f16x2 high, high, q;
and.b32 count, $5, 0x7f7f7f7f;
add.u32 count, count, 0x7f7f7f7f;
and.b32 count, count, 0x80808080;
popc.b32 count, count;
add.u32 count, count, $9;
mov.b32 {l, h}, p;
cvt.f32.f16 a, l;
cvt.f32.f16 b, h;
mov.b32 {l, h}, q;
cvt.f32.f16 c, l;
cvt.f32.f16 d, h;
sub.f32 a, a, $6;
sub.f32 b, b, $6;
sub.f32 c, c, $6;
sub.f32 d, d, $6;
add.f32 s, a, b;
add.f32 t, c, d;
add.f32 $3, s, t;
mul.f32 a, a, a;
fma.rn.f32 a, b, b, a;
fma.rn.f32 a, c, c, a;
fma.rn.f32 $4, d, d, a;
mov.b32 $0, low;
mov.b32 $1, high;
mov.b32 $2, count;
}
"""
_E4M3 = tl.constexpr(_FLOAT8 % {"kind": "e4m3"})
_E5M2 = tl.constexpr(_FLOAT8 % {"kind": "e5m2"})
_FLOAT_OPERANDS = tl.constexpr("=r,=r,=r,=f,=f,r,f,r,r,r")

# Operands: 0 low, 1 high, 2 nonzeros, 3 sum, 4 squares; of the word 5, and those so far, 6 to 10.
_BYTES = """
{
.reg .b32 low, high, count, even, odd, s, q;
prmt.b32 even, $5, 0, %(even)s;
prmt.b32 odd, $5, 0, %(odd)s;
min.s16x2 low, $6, even;
min.s16x2 low, low, odd;
max.s16x2 high, $7, even;
max.s16x2 high, high, odd;
and.b32 count, $5, 0x7f7f7f7f;
add.u32 count, count, 0x7f7f7f7f;
or.b32 count, count, $5;
and.b32 count, count, 0x80808080;
popc.b32 count, count;
add.u32 count, count, $8;
dp4a.%(kind)s s, $5, 0x01010101, $9;
dp4a.%(kind)s q, $5, $5, $10;
mov.b32 $0, low;
mov.b32 $1, high;
mov.b32 $2, count;
mov.b32 $3, s;
mov.b32 $4, q;
}
"""
_SIGNED = tl.constexpr(_BYTES % {"even": "0xA280", "odd": "0xB391", "kind": "s32.s32"})
_UNSIGNED = tl.constexpr(_BYTES % {"even": "0x4240", "odd": "0x4341", "kind": "u32.u32"})
_BYTE_OPERANDS = tl.constexpr("=r,=r,=r,=r,=r,r,r,r,r,r,r")
_MOST_TILES = tl.constexpr(1024)  # squares of so many bytes fit 31 bits in every lane
_MOST_HALF_TILES = tl.constexpr(16_000)  # nonzeros of so many 16-bit elements fit 16 bits


@triton.jit
def _fold(word, center, low, high, count, FORMAT: tl.constexpr, PER_WORD: tl.constexpr):
    HALVES: tl.constexpr = _BF16 if FORMAT == "bfloat16" else _F16
    QUARTERS: tl.constexpr = _E4M3 if FORMAT == "float8_e4m3fn" else _E5M2
    ASM: tl.constexpr = QUARTERS if PER_WORD == 4 else HALVES
    return tl.inline_asm_elementwise(
        ASM,
        _FLOAT_OPERANDS,
        [word, center, low, high, count],
        dtype=(tl.int32, tl.int32, tl.int32, tl.float32, tl.float32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def _four(memory, start, ROWS: tl.constexpr):
    """Four tiles' words: their loads are under way together."""
    return (
        tl.load(_vectors(memory, start, ROWS, 4)),
        tl.load(_vectors(memory, start + ROWS * 4, ROWS, 4)),
        tl.load(_vectors(memory, start + ROWS * 8, ROWS, 4)),
        tl.load(_vectors(memory, start + ROWS * 12, ROWS, 4)),
    )


@triton.jit
def _add(
    word, center, low, high, count, sums, squares, FORMAT: tl.constexpr, PER_WORD: tl.constexpr
):
    low, high, count, sum_, square = _fold(word, center, low, high, count, FORMAT, PER_WORD)
    sums += tl.sum(sum_, 1).to(tl.float64)
    squares += tl.sum(square, 1).to(tl.float64)
    return low, high, count, sums, squares


@triton.jit
def _fold_bytes(word, low, high, count, sum_, square, SIGNED: tl.constexpr):
    ASM: tl.constexpr = _SIGNED if SIGNED else _UNSIGNED
    return tl.inline_asm_elementwise(
        ASM,
        _BYTE_OPERANDS,
        [word, low, high, count, sum_, square],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def _half(words, SHIFT: tl.constexpr, KIND: tl.constexpr):
    return (words >> SHIFT).to(tl.int16).to(KIND, bitcast=True)


@triton.jit
def _whole(values):
    """The sum of all elements of a tile of 32-bit integers, in 64 bits."""
    return tl.sum(tl.sum(values.to(tl.int64), 1), 0)


@triton.jit
def lazytrace_packed_statistics(
    table, programs, records, FORMAT: tl.constexpr, PER_WORD: tl.constexpr, ROWS: tl.constexpr
):
    """The bulk kernel for two 16-bit or four 8-bit floats a word, PER_WORD of them."""
    KIND: tl.constexpr = tl.bfloat16 if FORMAT == "bfloat16" else tl.float16
    # Two infinities; with both sign bits set, two negative ones.
    LARGEST: tl.constexpr = 0x7F807F80 if FORMAT == "bfloat16" else 0x7C007C00
    TILE: tl.constexpr = UNROLL * ROWS * 4 * PER_WORD
    job, position, stop, record = _range(table, programs, records)
    memory = tl.load(job).to(tl.pointer_type(tl.int32))
    n = tl.zeros((), tl.int64)
    zero = n
    no_scale = tl.zeros((), tl.int32)
    low = tl.full((), float("inf"), tl.float32)
    high = tl.full((), float("-inf"), tl.float32)
    m2 = _float64(0.0)
    nothing = tl.zeros((ROWS, 4), tl.int32)
    word = tl.load(_vectors(memory, position // PER_WORD, ROWS, 4))
    parts = _fold(word, 0.0, nothing, nothing, nothing, FORMAT, PER_WORD)[3]
    mean = tl.sum(tl.sum(parts, 1).to(tl.float64), 0) / (ROWS * 4 * PER_WORD)
    while position < stop:
        tiles = tl.minimum((stop - position) // TILE, tl.maximum(n // TILE, 1))
        tiles = tl.minimum(tiles, _MOST_HALF_TILES)
        center = mean.to(tl.float32)
        lows = nothing + LARGEST
        highs = nothing + (LARGEST ^ -0x7FFF8000)
        counts = nothing
        sums = tl.zeros((ROWS,), tl.float64)
        squares = tl.zeros((ROWS,), tl.float64)
        for tile in range(tiles):
            start = (position + tile * TILE) // PER_WORD
            word0, word1, word2, word3 = _four(memory, start, ROWS)
            lows, highs, counts, sums, squares = _add(
                word0, center, lows, highs, counts, sums, squares, FORMAT, PER_WORD
            )
            lows, highs, counts, sums, squares = _add(
                word1, center, lows, highs, counts, sums, squares, FORMAT, PER_WORD
            )
            lows, highs, counts, sums, squares = _add(
                word2, center, lows, highs, counts, sums, squares, FORMAT, PER_WORD
            )
            lows, highs, counts, sums, squares = _add(
                word3, center, lows, highs, counts, sums, squares, FORMAT, PER_WORD
            )
        even = _half(lows, 0, KIND).to(tl.float32)
        part_low = tl.min(tl.min(tl.minimum(even, _half(lows, 16, KIND).to(tl.float32)), 1), 0)
        even = _half(highs, 0, KIND).to(tl.float32)
        part_high = tl.max(tl.max(tl.maximum(even, _half(highs, 16, KIND).to(tl.float32)), 1), 0)
        if PER_WORD == 2:
            counts = (counts & 0xFFFF) + ((counts >> 16) & 0xFFFF)
        part_n = tiles * TILE
        sum_ = tl.sum(sums, 0)
        square = tl.sum(squares, 0)
        reach = tl.maximum(tl.abs(part_low - center), tl.abs(part_high - center))
        is_out_of_range = (square - square != 0) | ((reach < 2.0**-40) & (reach > 0))
        part_mean = sum_ / part_n.to(tl.float64)
        part_m2 = tl.maximum(square - sum_ * part_mean, _float64(0.0))
        part_mean += center.to(tl.float64)
        n, mean, m2, _ = _merged(n, mean, m2, no_scale, part_n, part_mean, part_m2, no_scale, False)
        low = tl.minimum(low, part_low)
        high = tl.maximum(high, part_high)
        zero += part_n - _whole(counts)
        position += part_n
        if is_out_of_range:
            n = n * 0 - 1
            position = stop
    none = zero * 0
    _store_float(
        record, n, zero, none, none, none, none + _NO_INDEX, no_scale,
        low.to(tl.float64), high.to(tl.float64), mean, m2, none,
    )  # fmt: skip


@triton.jit
def lazytrace_bytes_statistics(
    table, programs, records, SIGNED: tl.constexpr, BOOL: tl.constexpr, ROWS: tl.constexpr
):
    """The bulk kernel for integers of one byte: exact sums, and exact sums of squares."""
    TILE: tl.constexpr = UNROLL * ROWS * 16
    job, position, stop, record = _range(table, programs, records)
    memory = tl.load(job).to(tl.pointer_type(tl.int32))
    n = stop - position
    nonzero = n * 0
    total = n * 0
    square = n * 0
    # Two 16-bit halves a word, beyond every byte: a first fold leaves an element of the view's.
    lows = tl.full((ROWS, 4), 0x01000100, tl.int32)
    highs = tl.full((ROWS, 4), -0x00FF0100, tl.int32)
    nothing = tl.zeros((ROWS, 4), tl.int32)
    while position < stop:
        tiles = tl.minimum((stop - position) // TILE, _MOST_TILES)
        counts = nothing
        sums = nothing
        squares = nothing
        for tile in range(tiles):
            start = (position + tile * TILE) // 4
            word0, word1, word2, word3 = _four(memory, start, ROWS)
            lows, highs, counts, sums, squares = _fold_bytes(
                word0, lows, highs, counts, sums, squares, SIGNED
            )
            lows, highs, counts, sums, squares = _fold_bytes(
                word1, lows, highs, counts, sums, squares, SIGNED
            )
            lows, highs, counts, sums, squares = _fold_bytes(
                word2, lows, highs, counts, sums, squares, SIGNED
            )
            lows, highs, counts, sums, squares = _fold_bytes(
                word3, lows, highs, counts, sums, squares, SIGNED
            )
        nonzero += _whole(counts)
        total += _whole(sums)
        square += _whole(squares)
        position += tiles * TILE
    low = tl.min(tl.min(tl.minimum(_half(lows, 0, tl.int16), _half(lows, 16, tl.int16)), 1), 0)
    high = tl.max(tl.max(tl.maximum(_half(highs, 0, tl.int16), _half(highs, 16, tl.int16)), 1), 0)
    low = low.to(tl.int64)
    high = high.to(tl.int64)
    if BOOL:
        low = tl.where(nonzero == n, 1, 0).to(tl.int64)
        high = tl.where(nonzero > 0, 1, 0).to(tl.int64)
        total = nonzero
        square = nonzero
    # About an integer near the mean everything is exact but for one small quotient.
    center = tl.floor(total.to(tl.float64) / n.to(tl.float64)).to(tl.int64)
    rest = (total - n * center).to(tl.float64)
    spread = square - 2 * center * total + n * center * center
    m2 = spread.to(tl.float64) - rest * (rest / n.to(tl.float64))
    none = n * 0
    mean = total.to(tl.float64) / n.to(tl.float64)
    _store_float(
        record, n, n - nonzero, none, none, none, none + _NO_INDEX, none,
        low.to(tl.float64), high.to(tl.float64), mean, tl.maximum(m2, 0.0), total,
    )  # fmt: skip
