"""The exact Triton kernels, element by element in float64, and what all kernels share.

One program reads one range of one job and writes one partial record. A job is a view's memory:
64-bit words ``address, contiguous, rank, head, base, signs`` and then, innermost dimension first,
``size, stride, weight`` for each. In a contiguous job elements are counted from ``address``, which
is a multiple of 16; the first ``head`` of them are not the view's and are never read. A program is
``job, start, end, record, is_bulk``: words in the table, elements, and words in the records.
"""

from __future__ import annotations

import triton
import triton.language as tl

_HEADER_WORDS = tl.constexpr(6)
_NO_INDEX = tl.constexpr((1 << 63) - 1)
_SCALE = tl.constexpr(600)
_SCALE_DOWN = tl.constexpr(2.0**-600)
_SCALE_UP = tl.constexpr(2.0**600)
_LARGE = tl.constexpr(2.0**480)
_SMALL = tl.constexpr(2.0**-400)


@triton.jit
def _float64(value: tl.constexpr):
    return tl.full((), value, tl.float64)


@triton.jit
def _words(address):
    return address.to(tl.int64).to(tl.pointer_type(tl.int64))


@triton.jit
def _range(table, programs, records):
    """A program's job, first and last element, and record."""
    program = _words(programs) + tl.program_id(0) * 5
    job = _words(table) + tl.load(program)
    record = _words(records) + tl.load(program + 3)
    return job, tl.load(program + 1), tl.load(program + 2), record


@triton.jit
def _vectors(memory, start, ROWS: tl.constexpr, VECTOR: tl.constexpr):
    """Pointers to whole 16-byte vectors, one a row."""
    lanes = tl.arange(0, ROWS)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    pointers = memory + tl.multiple_of(start, VECTOR) + lanes
    return tl.max_contiguous(tl.multiple_of(pointers, (16, 16)), (1, VECTOR))


@triton.jit
def _walk(job, rank, index, FIELD: tl.constexpr):
    """The offset (FIELD 1) or row-major index (FIELD 2) of element numbers within the job."""
    found = tl.zeros(index.shape, tl.int64)
    for axis in range(rank):
        entry = job + _HEADER_WORDS + axis * 3
        size = tl.load(entry).to(index.dtype)
        rest = index // size
        found += (index - rest * size).to(tl.int64) * tl.load(entry + FIELD)
        index = rest
    return found


@triton.jit
def _small_float(bits, SIGN: tl.constexpr, SHIFT: tl.constexpr, POWER: tl.constexpr):
    """An 8-bit float by placing its exponent and mantissa in a float32's and rescaling."""
    magnitude = ((bits & 0x7F) << SHIFT).to(tl.float32, bitcast=True) * POWER
    return tl.where((bits & SIGN) != 0, -magnitude, magnitude)


@triton.jit
def _decode(raw, FORMAT: tl.constexpr, COMPUTE: tl.constexpr):
    """Elements as numbers of the type COMPUTE, exactly."""
    if FORMAT == "native":
        value = raw
    elif FORMAT == "float8":
        value = raw.to(tl.float32)
    elif FORMAT == "bool":
        value = raw != 0
    elif FORMAT == "float8_e8m0fnu":
        bits = raw.to(tl.int32)
        scaled = tl.where(bits == 0, 0x00400000, bits << 23)
        value = tl.where(bits == 0xFF, 0x7FC00000, scaled).to(tl.float32, bitcast=True)
    elif FORMAT == "float8_e4m3fn":
        bits = raw.to(tl.int32)
        value = _small_float(bits, 0x80, 20, 2.0**120)
        value = tl.where((bits & 0x7F) == 0x7F, float("nan"), value)
    elif FORMAT == "float8_e5m2":
        bits = raw.to(tl.int32)
        value = (bits << 8).to(tl.int16).to(tl.float16, bitcast=True)
    elif FORMAT == "float8_e4m3fnuz":
        bits = raw.to(tl.int32)
        value = _small_float(bits, 0x80, 20, 2.0**119)
        value = tl.where(bits == 0x80, float("nan"), value)
    else:
        tl.static_assert(FORMAT == "float8_e5m2fnuz")
        bits = raw.to(tl.int32)
        value = _small_float(bits, 0x80, 21, 2.0**111)
        value = tl.where(bits == 0x80, float("nan"), value)
    return value.to(COMPUTE)


@triton.jit
def _rescaled(mean, m2, down):
    """Moments in units that are 2 ** down larger; 2 ** -1200 is nothing beside a float64."""
    factor = tl.where(down == 0, _float64(1.0), _float64(0.0))
    factor = tl.where(down == _SCALE, _float64(_SCALE_DOWN), factor)
    return mean * factor, m2 * factor * factor


@triton.jit
def _merged(n, mean, m2, scale, part_n, part_mean, part_m2, part_scale, SCALED: tl.constexpr):
    """Chan's merge of two means and sums of squared deviations."""
    if SCALED:
        common = tl.maximum(tl.where(n > 0, scale, part_scale), part_scale)
        common = tl.where(part_n > 0, common, scale)
        mean, m2 = _rescaled(mean, m2, tl.where(n > 0, common - scale, 0))
        part_mean, part_m2 = _rescaled(
            part_mean, part_m2, tl.where(part_n > 0, common - part_scale, 0)
        )
        scale = common
    total = n + part_n
    share = part_n.to(tl.float64) / tl.maximum(total, 1).to(tl.float64)
    delta = part_mean - mean
    mean += delta * share
    m2 += part_m2 + delta * delta * share * n.to(tl.float64)
    return total, mean, m2, scale


@triton.jit
def _tile_moments(x, ok, SCALED: tl.constexpr):
    """Count, range, mean and sum of squared deviations of the elements that are ``ok``."""
    n = tl.sum(ok.to(tl.int32), 0).to(tl.int64)
    low = tl.min(tl.where(ok, x, float("inf")), 0)
    high = tl.max(tl.where(ok, x, float("-inf")), 0)
    scale = tl.zeros((), tl.int32)
    if SCALED:
        largest = tl.where(n > 0, tl.maximum(tl.abs(low), tl.abs(high)), _float64(0.0))
        is_small = (largest < _float64(_SMALL)) & (largest > _float64(0.0))
        is_large = largest > _float64(_LARGE)
        scale = tl.where(is_large, _SCALE, tl.where(is_small, -_SCALE, 0)).to(tl.int32)
        factor = tl.where(is_small, _float64(_SCALE_UP), _float64(1.0))
        factor = tl.where(is_large, _float64(_SCALE_DOWN), factor)
        origin = tl.where(n > 0, low, _float64(0.0)) * factor
        distance = tl.where(ok, x * factor - origin, _float64(0.0))
    else:
        origin = tl.where(n > 0, low, _float64(0.0))
        distance = tl.where(ok, x - origin, _float64(0.0))
    mean = tl.sum(distance, 0) / tl.maximum(n, 1).to(tl.float64)
    deviation = tl.where(ok, distance - mean, _float64(0.0))
    return n, low, high, origin + mean, tl.sum(deviation * deviation, 0), scale


@triton.jit
def _elements(job, start, end, SUB: tl.constexpr):
    """Numbers, offsets and mask of one small tile of a job."""
    rank = tl.load(job + 2).to(tl.int32)
    index = start + tl.arange(0, SUB).to(tl.int64)
    inside = index < end
    offset = index
    if tl.load(job + 1) == 0:
        offset = _walk(job, rank, index.to(tl.uint32), 1)
    return index, offset, inside


@triton.jit
def _first_index(job, index, bad):
    """The least row-major index in the view of the elements that are ``bad``."""
    rank = tl.load(job + 2).to(tl.int32)
    number = tl.maximum(index - tl.load(job + 3), 0)
    logical = _walk(job, rank, number, 2) + tl.load(job + 4)
    return tl.min(tl.where(bad, logical, _NO_INDEX), 0)


@triton.jit
def _count(flags):
    return tl.sum(flags.to(tl.int32), 0).to(tl.int64)


@triton.jit
def _add_tile(
    job, index, inside, x, n, zero, nan, posinf, neginf, first, scale, low, high, mean, m2,
    SCALED: tl.constexpr,
):  # fmt: skip
    """Merges one tile, element by element, into a partial record's fields."""
    ok = inside & (x - x == 0)
    part_n, part_low, part_high, part_mean, part_m2, part_scale = _tile_moments(x, ok, SCALED)
    n, mean, m2, scale = _merged(n, mean, m2, scale, part_n, part_mean, part_m2, part_scale, SCALED)
    low = tl.minimum(low, part_low)
    high = tl.maximum(high, part_high)
    zero += _count(inside & (x == 0))
    if part_n < _count(inside):
        bad = inside & (x - x != 0)
        nan += _count(bad & (x != x))
        posinf += _count(bad & (x > 0))
        neginf += _count(bad & (x < 0))
        first = tl.minimum(first, _first_index(job, index, bad))
    return n, zero, nan, posinf, neginf, first, scale, low, high, mean, m2


@triton.jit
def _store_float(record, n, zero, nan, posinf, neginf, first, scale, low, high, mean, m2, total):
    tl.store(record, n)
    tl.store(record + 1, zero)
    tl.store(record + 2, nan)
    tl.store(record + 3, posinf)
    tl.store(record + 4, neginf)
    tl.store(record + 5, first)
    tl.store(record + 6, scale.to(tl.int64))
    tl.store(record + 7, low.to(tl.int64, bitcast=True))
    tl.store(record + 8, high.to(tl.int64, bitcast=True))
    tl.store(record + 9, mean.to(tl.int64, bitcast=True))
    tl.store(record + 10, m2.to(tl.int64, bitcast=True))
    tl.store(record + 11, total)


@triton.jit
def lazytrace_exact_statistics(
    table,
    programs,
    records,
    IN: tl.constexpr,
    FORMAT: tl.constexpr,
    INTEGRAL: tl.constexpr,
    SCALED: tl.constexpr,
    SUB: tl.constexpr,
):
    """Any range, and the bulk programs that gave up; SCALED for float64's whole range."""
    job, begin, stop, record = _range(table, programs, records)
    memory = tl.load(job).to(tl.pointer_type(IN))
    is_wanted = (tl.load(_words(programs) + tl.program_id(0) * 5 + 4) == 0) | (tl.load(record) < 0)
    if is_wanted:
        n = tl.zeros((), tl.int64)
        zero = n
        nan = n
        posinf = n
        neginf = n
        total = n
        first = n + _NO_INDEX
        scale = tl.zeros((), tl.int32)
        low = _float64(float("inf"))
        high = _float64(float("-inf"))
        mean = _float64(0.0)
        m2 = _float64(0.0)
        for start in range(begin, stop, SUB):
            index, offset, inside = _elements(job, start, stop, SUB)
            x = _decode(tl.load(memory + offset, mask=inside, other=0.0), FORMAT, tl.float64)
            n, zero, nan, posinf, neginf, first, scale, low, high, mean, m2 = _add_tile(
                job, index, inside, x, n, zero, nan, posinf, neginf, first, scale, low, high,
                mean, m2, SCALED,
            )  # fmt: skip
            if INTEGRAL:
                total += tl.sum(tl.where(inside, x, 0.0).to(tl.int64), 0)
        _store_float(record, n, zero, nan, posinf, neginf, first, scale, low, high, mean, m2, total)


@triton.jit
def lazytrace_complex_statistics(
    table, programs, records, IN: tl.constexpr, SCALED: tl.constexpr, SUB: tl.constexpr
):
    """Complex elements: two records of their parts, then the counts of whole elements."""
    job, begin, stop, record = _range(table, programs, records)
    signs = tl.load(job + 5)
    memory = tl.load(job).to(tl.pointer_type(IN))
    zero = tl.zeros((), tl.int64)
    nan = zero
    posinf = zero
    neginf = zero
    first = zero + _NO_INDEX
    for part in range(3):
        n = tl.zeros((), tl.int64)
        zero = n
        nan = n
        posinf = n
        neginf = n
        first = n + _NO_INDEX
        scale = tl.zeros((), tl.int32)
        low = _float64(float("inf"))
        high = _float64(float("-inf"))
        mean = _float64(0.0)
        m2 = _float64(0.0)
        for start in range(begin, stop, SUB):
            index, offset, inside = _elements(job, start, stop, SUB)
            real = tl.load(memory + 2 * offset, mask=inside, other=0.0).to(tl.float64)
            imag = tl.load(memory + 2 * offset + 1, mask=inside, other=0.0).to(tl.float64)
            real = tl.where((signs & 1) != 0, -real, real)
            imag = tl.where((signs & 2) != 0, -imag, imag)
            if part < 2:
                x = tl.where(part == 0, real, imag)
                n, zero, nan, posinf, neginf, first, scale, low, high, mean, m2 = _add_tile(
                    job, index, inside, x, n, zero, nan, posinf, neginf, first, scale, low, high,
                    mean, m2, SCALED,
                )  # fmt: skip
            else:
                infinity = float("inf")
                zero += _count(inside & (real == 0) & (imag == 0))
                nan += _count(inside & ((real != real) | (imag != imag)))
                posinf += _count(inside & ((real == infinity) | (imag == infinity)))
                neginf += _count(inside & ((real == -infinity) | (imag == -infinity)))
                bad = inside & ((real - real != 0) | (imag - imag != 0))
                if _count(bad) > 0:
                    first = tl.minimum(first, _first_index(job, index, bad))
        _store_float(
            record + part * 12, n, zero, nan, posinf, neginf, first, scale, low, high, mean, m2, n
        )
