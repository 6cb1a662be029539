"""What the kernels are to read: views as jobs, jobs as ranges for programs, all as table words."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import prod
from operator import itemgetter

import attrs

from lazytrace._statistics.layout import Layout
from lazytrace._statistics.region import ElementType, Family, Region

HEADER_WORDS = 6
PROGRAM_WORDS = 5
RECORD_WORDS = 12
WORD_BYTES = 8
VECTOR_BYTES = 16
TILE_VECTORS = 512  # of a bulk tile: 8 KiB
SUB = 1024  # elements of an exact tile

_MAX_RANK = 8
_MAX_STRIDED = (1 << 31) - 1  # the kernels divide strided elements' numbers in 32 bits
_BULK_LEAST_TILES = 8
_EXACT_LEAST = 4 * SUB

Dimension = tuple[int, int, int]  # size, stride, weight
Range = tuple[int, int]


@attrs.frozen
class Work:
    """A region to read for an ``owner``, a number that the records are given back under."""

    owner: int
    region: Region
    kind: ElementType
    layout: Layout


@attrs.frozen
class Job:
    """Memory that the kernels can read: ``dims`` innermost first, at most 8 of them.

    In a contiguous job elements are numbered from ``address``, a multiple of 16, and the first
    ``head`` numbers are not the view's. ``base`` is the view's row-major index of the first
    element.
    """

    address: int
    contiguous: bool
    head: int
    numel: int
    base: int
    dims: tuple[Dimension, ...]
    signs: int

    @property
    def words(self) -> list[int]:
        """The job as the kernels read it."""
        header = [self.address, self.contiguous, len(self.dims), self.head, self.base, self.signs]
        for dimension in self.dims:
            header.extend(dimension)
        return header


def jobs_of(region: Region, kind: ElementType, layout: Layout) -> Iterator[Job]:
    """The jobs that together are the region, which has elements."""
    signs = region.neg | (region.neg != region.conj) << 1
    dims = memory_order(layout)
    align = kind.family is not Family.COMPLEX
    for address, base, part in _split(region.data_ptr, 0, dims, kind.size_bytes):
        yield _job(address, base, part, kind.size_bytes, signs, align)


def memory_order(layout: Layout) -> tuple[Dimension, ...]:
    """The layout's dimensions from the smallest stride on, joined where memory and index agree."""
    dims = list(zip(layout.shape, layout.strides, layout.weights, strict=True))
    if len(dims) < 2:
        return tuple(dims)
    joined: list[Dimension] = []
    for size, stride, weight in sorted(dims, key=itemgetter(1, 2)):
        if joined:
            inner, inner_stride, inner_weight = joined[-1]
            if stride == inner * inner_stride and weight == inner * inner_weight:
                joined[-1] = (inner * size, inner_stride, inner_weight)
                continue
        joined.append((size, stride, weight))
    return tuple(joined)


def _is_contiguous(dims: tuple[Dimension, ...]) -> bool:
    expected = 1
    for size, stride, _ in dims:
        if stride != expected:
            return False
        expected *= size
    return True


def _split(
    address: int, base: int, dims: tuple[Dimension, ...], size_bytes: int
) -> Iterator[tuple[int, int, tuple[Dimension, ...]]]:
    """Parts along the outermost dimension, until each is one that the kernels can walk."""
    numel = prod(size for size, _, _ in dims)
    fits = numel <= _MAX_STRIDED or _is_contiguous(dims)
    if fits and len(dims) <= _MAX_RANK:
        yield address, base, dims
        return
    *inner, (size, stride, weight) = dims
    rows = 1 if len(dims) > _MAX_RANK else max(1, _MAX_STRIDED // (numel // size))
    for start in range(0, size, rows):
        count = min(rows, size - start)
        part = tuple(inner) if count == 1 else (*inner, (count, stride, weight))
        yield from _split(
            address + start * stride * size_bytes, base + start * weight, part, size_bytes
        )


def _job(
    address: int, base: int, dims: tuple[Dimension, ...], size_bytes: int, signs: int, align: bool
) -> Job:
    numel = prod(size for size, _, _ in dims)
    contiguous = _is_contiguous(dims)
    head = address % VECTOR_BYTES // size_bytes if contiguous and align else 0
    return Job(address - head * size_bytes, contiguous, head, numel, base, dims, signs)


def ranges_of(job: Job, kind: ElementType, max_programs: int) -> tuple[list[Range], list[Range]]:
    """The job's ranges for the bulk kernel, and those for the exact one, at most
    ``max_programs`` of each but for the ends of the bulk."""
    stop = job.head + job.numel
    vector = VECTOR_BYTES // kind.size_bytes
    if job.contiguous and kind.family is not Family.COMPLEX:
        tile = TILE_VECTORS * vector
        start = -(-job.head // vector) * vector
        tiles = (stop - start) // tile
        if tiles >= _BULK_LEAST_TILES:
            end = start + tiles * tile
            ends = [(job.head, start), (end, stop)]
            bulk = _even(start, tiles, tile, min(max_programs, tiles // _BULK_LEAST_TILES))
            return bulk, [(low, high) for low, high in ends if low < high]
    pieces = -(-job.numel // SUB)
    exact = _even(job.head, pieces, SUB, min(max_programs, -(-job.numel // _EXACT_LEAST)))
    exact[-1] = (exact[-1][0], stop)
    return [], exact


def _even(start: int, units: int, unit: int, programs: int) -> list[Range]:
    edges = [start + units * program // programs * unit for program in range(programs + 1)]
    return list(pairwise(edges))


@attrs.define
class Section:
    """The programs of one dtype in a batch: bulk ones first, since the exact kernel sees both."""

    bulk: array[int] = attrs.field(factory=lambda: array("q"))
    exact: array[int] = attrs.field(factory=lambda: array("q"))


@attrs.define
class Batch:
    """Jobs and programs that fit the workspace, and which records are whose.

    ``parts`` are (owner, first record's word, record count).
    """

    table_words: int
    record_words: int
    max_programs: int
    jobs: array[int] = attrs.field(factory=lambda: array("q"))
    sections: dict[str, Section] = attrs.field(factory=dict)
    parts: list[tuple[int, int, int]] = attrs.field(factory=list)
    program_count: int = 0
    used_records: int = 0

    def add(self, owner: int, job: Job, dtype: str, kind: ElementType) -> bool:
        """Takes the job up, or leaves everything as it is where it does not fit: False."""
        bulk, exact = ranges_of(job, kind, self.max_programs)
        words = job.words
        count = len(bulk) + len(exact)
        stride = RECORD_WORDS * (3 if kind.part else 1)
        used = len(self.jobs) + len(words) + (self.program_count + count) * PROGRAM_WORDS
        if used > self.table_words or self.used_records + count * stride > self.record_words:
            return False
        section = self.sections.get(dtype)
        if section is None:
            section = self.sections[dtype] = Section()
        place = len(self.jobs)
        record = self.used_records
        self.parts.append((owner, record, count))
        for rows, ranges, is_bulk in ((section.bulk, bulk, 1), (section.exact, exact, 0)):
            for start, end in ranges:
                rows.extend((place, start, end, record, is_bulk))
                record += stride
        self.jobs.extend(words)
        self.program_count += count
        self.used_records = record
        return True


def batches_of(
    work: Iterable[Work],
    table_words: int,
    record_words: int,
    max_programs: int,
) -> Iterator[Batch]:
    """Batches of the owners' regions, each as large as the workspace allows."""
    batch = Batch(table_words, record_words, max_programs)
    for item in work:
        for job in jobs_of(item.region, item.kind, item.layout):
            if not batch.add(item.owner, job, item.region.dtype, item.kind):
                yield batch
                batch = Batch(table_words, record_words, max_programs)
                batch.add(item.owner, job, item.region.dtype, item.kind)
    if batch.parts:
        yield batch
