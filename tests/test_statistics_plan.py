"""Views as jobs and ranges: every element once, nothing outside, within the workspace."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from statistics_cases import region_of, view

from lazytrace._statistics import Region
from lazytrace._statistics.launch_plan import UnsupportedLayout, decode_slots, plan_launch
from lazytrace._statistics.layout import layout_of
from lazytrace._statistics.plan import Job, Work, batches_of, jobs_of, ranges_of
from lazytrace._statistics.region import element_type


def jobs(region: Region) -> list[Job]:
    return list(jobs_of(region, element_type(region), layout_of(region)))


def elements(job: Job, number: int) -> tuple[int, int]:
    """What the kernels make of an element's number: its byte offset and its row-major index."""
    offset = number
    rest, index, strided = number - job.head, job.base, 0
    for size, stride, weight in job.dims:
        rest, coordinate = divmod(rest, size)
        strided += coordinate * stride
        index += coordinate * weight
    return (offset if job.contiguous else strided), index


@pytest.mark.parametrize("seed", range(40))
def test_jobs_cover_each_coordinate_of_a_view_once(seed: int) -> None:
    """Addresses and row-major indices agree with torch's strides, for all kinds of views."""
    tensor = view(random.Random(seed), "float32", 400)
    region = region_of(tensor)
    layout = layout_of(region)
    if layout.numel == 0:
        return
    wanted = {}
    for coordinates in itertools.product(*map(range, tensor.shape)):
        index = 0
        for size, coordinate in zip(tensor.shape, coordinates, strict=True):
            index = index * size + coordinate
        steps = zip(tensor.stride(), coordinates, strict=True)
        place = tuple(c for c, s in zip(coordinates, tensor.stride(), strict=True) if s)
        address = region.data_ptr + 4 * sum(stride * c for stride, c in steps)
        wanted.setdefault(place, (address, index))
    found = []
    for job in jobs(region):
        for number in range(job.head, job.head + job.numel):
            offset, index = elements(job, number)
            found.append((job.address + 4 * offset, index))
    assert sorted(found) == sorted(wanted.values())
    assert len(found) * layout.repeats == tensor.numel()


@pytest.mark.parametrize("offset", [0, 1, 3, 4])
@pytest.mark.parametrize("numel", [1, 1023, 16_384, 16_390, 1_000_003])
def test_ranges_are_the_job_and_bulk_ones_are_whole_aligned_tiles(offset: int, numel: int) -> None:
    """Neither a gap nor an overlap, and never an element before the view."""
    region = Region(0x1000 + 4 * offset, (numel,), (1,), "float32", 4)
    (job,) = jobs(region)
    assert job.address % 16 == 0
    assert job.address + 4 * job.head == region.data_ptr
    bulk, exact = ranges_of(job, element_type(region), 7)
    assert all(start % 4 == 0 and (end - start) % 2048 == 0 for start, end in bulk)
    assert bool(bulk) == (numel - (-job.head % 4) >= 8 * 2048)
    edges = sorted(bulk + exact)
    assert (edges[0][0], edges[-1][1]) == (job.head, job.head + numel)
    assert all(left[1] == right[0] for left, right in itertools.pairwise(edges))


def test_a_transposed_matrix_is_contiguous_memory() -> None:
    """The reading order is the memory's; the weights keep the row-major index."""
    (job,) = jobs(Region(0x1000, (3, 5), (1, 3), "int8", 1))
    assert (job.contiguous, job.dims) == (True, ((3, 1, 5), (5, 3, 1)))


def test_more_dimensions_than_the_kernels_walk_are_split_on_the_host() -> None:
    """Ten dimensions that cannot be joined become jobs of eight."""
    shape, strides = (2,) * 10, tuple(3**power for power in reversed(range(10)))
    split = jobs(Region(0x1000, shape, strides, "int8", 1))
    assert [len(job.dims) for job in split] == [8] * 4
    assert [job.base for job in split] == [0, 256, 512, 768]
    assert [job.address - job.head - 0x1000 for job in split] == [0, 6561, 19683, 26244]


def test_strided_elements_are_numbered_in_32_bits() -> None:
    """A strided view of more than 2 ** 31 elements is split, a contiguous one is not."""
    split = jobs(Region(0x1000, (1 << 32, 2), (3, 1), "int8", 1))
    assert sum(job.numel for job in split) == 1 << 33
    assert max(job.numel for job in split) < 1 << 31
    assert len(jobs(Region(0x1000, (1 << 33,), (1,), "int8", 1))) == 1


def test_batches_fill_the_workspace_and_no_more() -> None:
    """Regions go on in the next batch where table or records are full; none is lost."""
    regions = [Region(0x1000 * (i + 1), (1000,), (1,), "int16", 2) for i in range(100)]
    work = [Work(i, r, element_type(r), layout_of(r)) for i, r in enumerate(regions)]
    batches = list(batches_of(work, table_words=14 * 30, record_words=12 * 40, max_programs=4))
    assert [len(batch.parts) for batch in batches] == [30, 30, 30, 10]
    assert [part[0] for batch in batches for part in batch.parts] == list(range(100))


def test_a_launch_plan_answers_for_what_it_cannot_run() -> None:
    """Empty, unreadable and too many-dimensional views need no row of the node."""
    many = Region(0x1000, (2,) * 7, tuple(3**power for power in reversed(range(7))), "int8", 1)
    plan = plan_launch([region_of(torch.empty(0)), Region(0, (1,), (1,), "uint4", 1), many])
    assert (plan.rows, plan.slot_bytes) == (0, 0)
    found = decode_slots(plan, b"")
    assert getattr(found[0], "replay", None) == 0
    assert [type(found[1]).__name__, type(found[2])] == ["UnsupportedDtype", UnsupportedLayout]
