"""The kernels' partial records, as the host reads them."""

from __future__ import annotations

from struct import Struct
from typing import Final

from lazytrace._statistics.combine import (
    ComplexSum,
    Counts,
    FloatSum,
    Integer64Sum,
    IntegerSum,
)
from lazytrace._statistics.plan import RECORD_WORDS, WORD_BYTES, Work
from lazytrace._statistics.region import ElementType, Family
from lazytrace.errors import InternalError
from lazytrace.records import TensorStats

Total = FloatSum | IntegerSum | ComplexSum

_RECORD_BYTES = RECORD_WORDS * WORD_BYTES
_NO_INDEX = (1 << 63) - 1
_NUMBER: Final = Struct("<7q4dq")  # n zero nan +inf -inf first scale low high mean m2 total
_INTEGER64: Final = Struct("<2q40x3qdq")  # n zero low high upper m2 lower
_BIASES: Final = {"int64": 0, "uint64": 1 << 63}


def empty_total(dtype: str, kind: ElementType) -> Total:
    """Where the records of a region of this dtype are gathered."""
    if kind.family is Family.FLOAT:
        return FloatSum()
    if kind.family is Family.COMPLEX:
        return ComplexSum()
    if dtype in _BIASES:
        return Integer64Sum(bias=_BIASES[dtype])
    return IntegerSum()


def stats_of(total: Total, item: Work) -> TensorStats:
    """The statistics of a region whose records were all added."""
    if isinstance(total, FloatSum):
        return total.stats(item.layout.repeats, negated=item.region.neg)
    return total.stats(item.layout.repeats)


def add_records(total: Total, records: bytes, word: int, count: int) -> None:
    """Adds ``count`` records that begin at a word of the records."""
    start = word * WORD_BYTES
    if isinstance(total, ComplexSum):
        _add_complex(total, records, start, count)
        return
    for offset in range(start, start + count * _RECORD_BYTES, _RECORD_BYTES):
        if isinstance(total, FloatSum):
            _add_float(total, total.counts, records, offset)
        elif isinstance(total, Integer64Sum):
            n, zero, low, high, upper, m2, lower = _INTEGER64.unpack_from(records, offset)
            bias = total.bias
            total.add(n, low + bias, high + bias, (upper << 32) + lower + n * bias, m2, zero)
        else:
            n, zero, _, _, _, _, _, low, high, _, m2, summed = _NUMBER.unpack_from(records, offset)
            total.add(n, int(low), int(high), summed, m2, zero)


def _add_float(total: FloatSum, counts: Counts, records: bytes, offset: int) -> None:
    n, zero, nan, posinf, neginf, first, scale, low, high, mean, m2, _ = _NUMBER.unpack_from(
        records, offset
    )
    if n < 0:
        raise InternalError("a bulk program's range was not read again")
    counts.zero += zero
    if first != _NO_INDEX:
        counts.add(nan, posinf, neginf, first)
    total.add(n, low, high, mean, m2, scale)


def _add_complex(total: ComplexSum, records: bytes, start: int, count: int) -> None:
    for offset in range(start, start + 3 * count * _RECORD_BYTES, 3 * _RECORD_BYTES):
        _add_float(total.real, total.real.counts, records, offset)
        _add_float(total.imag, total.imag.counts, records, offset + _RECORD_BYTES)
        _add_float(FloatSum(), total.counts, records, offset + 2 * _RECORD_BYTES)
