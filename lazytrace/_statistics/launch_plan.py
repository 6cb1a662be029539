"""All tensors of one launch as one node: its device memory before, its slots after. Host only."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isfinite
from struct import Struct
from typing import Final

import attrs

from lazytrace._statistics.combine import ComplexSum, Counts, FloatSum, IntegerSum
from lazytrace._statistics.layout import Layout, layout_of
from lazytrace._statistics.plan import WORD_BYTES, Dimension, memory_order
from lazytrace._statistics.region import (
    ELEMENT_TYPES,
    ElementType,
    Family,
    MisalignedView,
    Region,
    UnsupportedDtype,
    element_type,
)
from lazytrace.errors import LazytraceError
from lazytrace.records import TensorStats

ROW_WORDS = 24
PARTIAL_WORDS = 12
SLOT_WORDS = 16
MOST_PROGRAMS = 128
_MAX_RANK = 6
_BYTES_PER_PROGRAM = 4096
_MOST_INLINE = 4
_NO_INDEX = (1 << 63) - 1
_LEAST_SQUARES = 2.0**-960
# replay, first bad replay, its index; zero nan +inf -inf first; low high sum square center
_FLOAT_SLOT: Final = Struct("<8q5d")
_INTEGER_SLOT: Final = Struct("<4q32x2q2d2q")  # ...; low high sum square upper lower
_FLIPPED: Final = "uint64"

CODES: Final = {
    name: code
    for start, names in (
        (0, ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")),
        (6, ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")),
        (16, ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")),
    )
    for code, name in enumerate(names, start)
}
_COMPLEX_CODE = 32  # + the code of the parts' type


class UnsupportedLayout(LazytraceError):
    """A view needs more dimensions than a node's row has room for."""


@attrs.frozen
class SlotReading:
    """What a node saw of one tensor.

    ``replay`` counts the node's runs, from 1; 0: it has not run, and ``stats`` mean nothing.
    ``first_bad_replay`` is the first run that saw an element that is not finite, and
    ``first_bad_index`` the first such element's row-major index then. A node sums squares in
    float64 as they are: where float64 elements lie further apart than about 1e150, or closer than
    1e-145, ``stats`` have no ``std``, and no ``mean`` where their sum overflows.
    """

    replay: int
    stats: TensorStats
    first_bad_replay: int | None
    first_bad_index: int | None


@attrs.frozen
class _Entry:
    region: Region
    kind: ElementType
    layout: Layout
    dims: tuple[Dimension, ...]
    first_row: int


@attrs.frozen
class LaunchPlan:
    """A node's device memory, ``size_bytes`` in one block that begins with ``image``.

    The block holds counters, slots, rows, and partial records, which ``image`` leaves out. The
    slots are ``slot_bytes`` at ``slots_offset``. ``entries`` has one member a region: where its
    slots are, its statistics where nothing needs to run, or why it cannot be read. ``inline``
    has each row's address, numel and code where the rows need no memory.
    """

    image: bytes
    size_bytes: int
    rows: int
    programs: int
    slots_offset: int
    slot_bytes: int
    rows_offset: int
    partials_offset: int
    inline: tuple[tuple[int, int, int], ...]
    entries: tuple[_Entry | TensorStats | Exception, ...]


def plan_launch(regions: Sequence[Region]) -> LaunchPlan:
    """The node that reads these regions; ``rows`` is 0 where there is nothing to run."""
    table = array("q")
    entries: list[_Entry | TensorStats | Exception] = []
    largest = 0
    for region in regions:
        try:
            entry = _entry(region, len(table) // ROW_WORDS)
        except (UnsupportedDtype, MisalignedView, UnsupportedLayout) as error:
            entries.append(error)
            continue
        entries.append(entry)
        if isinstance(entry, _Entry):
            table.extend(_rows(entry))
            largest = max(largest, entry.layout.numel * region.element_size)
    rows = len(table) // ROW_WORDS
    programs = max(1, min(MOST_PROGRAMS, -(-largest // _BYTES_PER_PROGRAM)))
    slots_offset = (rows + 1) // 2 * WORD_BYTES
    slot_bytes = rows * SLOT_WORDS * WORD_BYTES
    rows_offset = slots_offset + slot_bytes
    partials_offset = rows_offset + len(table) * WORD_BYTES
    return LaunchPlan(
        image=bytes(rows_offset) + table.tobytes(),
        size_bytes=partials_offset + rows * programs * PARTIAL_WORDS * WORD_BYTES,
        rows=rows,
        programs=programs,
        slots_offset=slots_offset,
        slot_bytes=slot_bytes,
        rows_offset=rows_offset,
        partials_offset=partials_offset,
        inline=_inline(table, rows),
        entries=tuple(entries),
    )


def _inline(table: array[int], rows: int) -> tuple[tuple[int, int, int], ...]:
    places = range(0, rows * ROW_WORDS, ROW_WORDS)
    is_plain = all(table[place + 3] == 0 and table[place + 2] < _COMPLEX_CODE for place in places)
    if rows > _MOST_INLINE or not is_plain:
        return ()
    return tuple((table[place], table[place + 1], table[place + 2]) for place in places)


def _entry(region: Region, first_row: int) -> _Entry | TensorStats:
    kind = element_type(region)
    layout = layout_of(region)
    if layout.numel == 0:
        return TensorStats()
    dims = memory_order(layout)
    if len(dims) > _MAX_RANK:
        raise UnsupportedLayout(f"a view of {len(dims)} dimensions that cannot be joined")
    return _Entry(region, kind, layout, dims, first_row)


def _rows(entry: _Entry) -> list[int]:
    region, kind, layout, dims = entry.region, entry.kind, entry.layout, entry.dims
    if kind.part is None:
        return _row(region.data_ptr, layout.numel, CODES[region.dtype], dims, 0)
    code = CODES[kind.part]
    parts = tuple((size, 2 * stride, weight) for size, stride, weight in dims)
    parts = parts or ((1, 2, 1),)
    signs = region.neg | (region.neg != region.conj) << 1
    imag = region.data_ptr + ELEMENT_TYPES[kind.part].size_bytes
    return [
        *_row(region.data_ptr, layout.numel, code, parts, 0),
        *_row(imag, layout.numel, code, parts, 0),
        *_row(region.data_ptr, layout.numel, _COMPLEX_CODE + code, dims, signs),
    ]


def _row(address: int, numel: int, code: int, dims: tuple[Dimension, ...], signs: int) -> list[int]:
    is_plain = all(stride == 1 and weight == 1 for _, stride, weight in dims) and len(dims) < 2
    words = [address, numel, code, 0 if is_plain else len(dims), signs, 0]
    if not is_plain:
        for dimension in dims:
            words.extend(dimension)
    return words + [0] * (ROW_WORDS - len(words))


def decode_slots(plan: LaunchPlan, slots: bytes) -> list[SlotReading | Exception]:
    """What the plan's regions held, from the ``slot_bytes`` of its slots."""
    return [_reading(entry, slots) for entry in plan.entries]


def _reading(entry: _Entry | TensorStats | Exception, slots: bytes) -> SlotReading | Exception:
    if isinstance(entry, Exception):
        return entry
    if isinstance(entry, TensorStats):
        return SlotReading(0, entry, None, None)
    place = entry.first_row * SLOT_WORDS * WORD_BYTES
    repeats, region = entry.layout.repeats, entry.region
    if entry.kind.part is not None:
        return _complex_reading(entry, slots, place)
    if entry.kind.family is not Family.FLOAT:
        replay, integers = _integers(entry, slots, place)
        return SlotReading(replay, integers.stats(repeats), None, None)
    replay, bad_replay, bad_index, total = _floats(entry.layout.numel, slots, place)
    stats = _within_range(total, total.stats(repeats, negated=region.neg))
    return SlotReading(replay, stats, *_first_bad(bad_replay, bad_index))


def _within_range(total: FloatSum, stats: TensorStats) -> TensorStats:
    """Without the moments whose sums left float64's range; only float64 elements can do that."""
    if not isfinite(total.mean):
        return attrs.evolve(stats, mean=None, std=None)
    if not isfinite(total.m2) or (total.m2 < _LEAST_SQUARES and total.min < total.max):
        return attrs.evolve(stats, std=None)
    return stats


def _first_bad(replay: int, index: int) -> tuple[int | None, int | None]:
    return (replay, index) if replay else (None, None)


def _floats(numel: int, slots: bytes, place: int) -> tuple[int, int, int, FloatSum]:
    fields = _FLOAT_SLOT.unpack_from(slots, place)
    replay, bad_replay, bad_index, zero, nan, posinf, neginf, first = fields[:8]
    low, high, sum_, square, center = fields[8:]
    total = FloatSum(Counts(zero=zero))
    total.counts.add(nan, posinf, neginf, None if first == _NO_INDEX else first)
    n = numel - nan - posinf - neginf
    if n:
        m2 = square - sum_ * (sum_ / n)
        total.add(n, low, high, center + sum_ / n, 0.0 if m2 < 0 else m2)
    return replay, bad_replay, bad_index, total


def _integers(entry: _Entry, slots: bytes, place: int) -> tuple[int, IntegerSum]:
    replay, _, _, zero, low, high, sum_, square, upper, lower = _INTEGER_SLOT.unpack_from(
        slots, place
    )
    n = entry.layout.numel
    bias = 1 << 63 if entry.region.dtype == _FLIPPED else 0
    total = IntegerSum()
    summed = (upper << 32) + lower + n * bias
    m2 = max(square - sum_ * (sum_ / n), 0.0)
    total.add(n, low + bias, high + bias, summed, m2, zero)
    return replay, total


def _complex_reading(entry: _Entry, slots: bytes, place: int) -> SlotReading:
    step = SLOT_WORDS * WORD_BYTES
    numel, repeats, region = entry.layout.numel, entry.layout.repeats, entry.region
    _, _, _, real = _floats(numel, slots, place)
    _, _, _, imag = _floats(numel, slots, place + step)
    replay, bad_replay, bad_index, whole = _floats(numel, slots, place + 2 * step)
    parts = ComplexSum(whole.counts, real, imag).stats(repeats)
    stats = attrs.evolve(
        parts,
        real=_within_range(real, real.stats(repeats, negated=region.neg)),
        imag=_within_range(imag, imag.stats(repeats, negated=region.neg != region.conj)),
    )
    return SlotReading(replay, stats, *_first_bad(bad_replay, bad_index))
