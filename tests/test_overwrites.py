"""Which later launch may have overwritten what is read after a replay."""

from __future__ import annotations

import gc
import random
import time

import attrs
import kernels
import pytest
import torch
import triton
import triton.language as tl
from case_kernels import captured

import lazytrace
from lazytrace._values.write_index import NO_LAUNCH, WriteIndex
from lazytrace.records import DescriptorArg, TupleArg
from lazytrace.testing import simulate


@triton.jit
def divide(x, y, out, n, BLOCK: tl.constexpr):
    """``out = x / y``."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    quotient = tl.load(x + offsets, mask=mask) / tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, quotient, mask=mask)


@triton.jit
def clean(x, n, BLOCK: tl.constexpr):
    """Sets what is not finite to zero, in place."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x + offsets, mask=mask)
    tl.store(x + offsets, tl.where(tl.abs(value) < 1e30, value, 0.0), mask=mask)


def seen(record, path="x"):
    """What a record says about the overwriting of one argument."""
    observed = record.args[path].observed
    return str(observed.overwritten), observed.overwritten_by


def scale(x, factor=2.0):
    kernels.scale_[(1,)](x, x.numel(), factor, BLOCK=16)


def copy(x, out):
    kernels.copy[(1,)](x, out, out.numel(), BLOCK=16)


def replayed(device, body, times=1):
    """Captures, replays and synchronises; the graph is to be kept until the records are read."""
    graph = captured(body)
    for _ in range(times):
        graph.replay()
    device.synchronize()
    return graph


def ones(device, *shape):
    return torch.ones(*shape, device=device.torch_device)


# The index


def test_the_index_agrees_with_a_search_through_all_writes():
    """Random overlapping, nested, equal and empty ranges: the last writer of any range is found."""
    rng = random.Random(0)
    for case in range(200):
        most = rng.choice((5, 40, 400))
        writes = [
            (start, start + rng.randrange(0, 12), rng.randrange(1000))
            for start in (rng.randrange(most) for _ in range(rng.randrange(0, 60)))
        ]
        index = WriteIndex.of(writes)
        for _ in range(40):
            start = rng.randrange(-3, most + 15)
            end = start + rng.randrange(0, rng.choice((2, 10, most)))
            expected = max(
                (launch for a, b, launch in writes if max(a, start) < min(b, end)),
                default=NO_LAUNCH,
            )
            assert index.last_writer(start, end) == expected, (case, start, end)


@pytest.mark.parametrize("overlap", [False, True], ids=["disjoint", "nested"])
def test_the_index_takes_a_hundred_thousand_writes(overlap):
    """Not quadratic, whether the ranges are disjoint or all lie within each other."""
    count = 100_000
    if overlap:
        writes = [(i, 3 * count - i, i) for i in range(count)]
    else:
        writes = [(8 * i, 8 * i + 8, i) for i in range(count)]
    begun = time.process_time()
    index = WriteIndex.of(writes)
    last = [index.last_writer(start, end) for start, end, _ in writes]
    assert time.process_time() - begun < 10
    assert last == ([count - 1] * count if overlap else list(range(count)))


# Captured launches


def test_in_place_updates_in_one_graph_name_the_last_one(device):
    """C17 deferred: all three show what the replay left, the first two say who wrote it since."""
    x = ones(device, 8)
    with lazytrace.trace() as tracer:
        graph = replayed(device, lambda: [scale(x, factor) for factor in (2.0, 3.0, 4.0)])
        records = tracer.records()
        del graph
    assert [record.args["x"].values.max for record in records] == [24.0] * 3
    assert {record.args["x"].observed.point for record in records} == {"after_replay"}
    assert [seen(record) for record in records] == [
        ("by_launch", 2),
        ("by_launch", 2),
        ("possible", None),
    ]


def test_a_folded_run_overwrites_itself_but_for_its_last_launch(simulated):
    """One record of three equal launches names its own last one; expanded, that one is clean."""
    x = ones(simulated, 8)
    with lazytrace.trace() as tracer:
        graph = replayed(simulated, lambda: [scale(x) for _ in range(3)])
        (run,) = tracer.records()
        launches = tracer.records(expand=True)
        del graph
    assert (run.id, run.count, seen(run)) == (0, 3, ("by_launch", 2))
    assert [(one.id, seen(one)) for one in launches] == [
        (0, ("by_launch", 2)),
        (1, ("by_launch", 2)),
        (2, ("possible", None)),
    ]


def test_the_same_launch_again_later_in_the_graph_overwrites_the_first(simulated):
    """Launches that share their arguments are told apart: only the last one kept its value."""
    x, other = ones(simulated, 8), ones(simulated, 8)
    with lazytrace.trace() as tracer:
        graph = replayed(simulated, lambda: [scale(x), scale(other), scale(x)])
        records = tracer.records()
        del graph
    assert [seen(record) for record in records] == [
        ("by_launch", 2),
        ("possible", None),
        ("possible", None),
    ]


def test_a_reader_is_told_who_overwrote_its_input(simulated):
    """The input of launch 0 was written by launch 2; reading it again overwrites nothing."""
    x, first, second = (ones(simulated, 8) for _ in range(3))

    def body():
        copy(x, first)
        copy(x, second)
        scale(x)
        copy(x, second)

    with lazytrace.trace() as tracer:
        graph = replayed(simulated, body)
        records = tracer.records()
        del graph
    assert [seen(record) for record in records] == [
        ("by_launch", 2),
        ("by_launch", 2),
        ("possible", None),
        ("possible", None),
    ]
    assert [seen(records[i], "out") for i in (0, 1, 3)] == [
        ("possible", None),
        ("by_launch", 3),
        ("possible", None),
    ]


def test_ranges_of_memory_decide_not_tensors(device):
    """A write to one half of a buffer is one to the whole of it, and none to the other half."""
    buffer, x = ones(device, 16), ones(device, 8)
    low, high = buffer[:8], buffer[8:]

    def body():
        copy(x, low)
        scale(buffer)
        copy(x, high)

    with lazytrace.trace() as tracer:
        graph = replayed(device, body)
        first, second, third = tracer.records()
        del graph
    assert seen(first, "out") == ("by_launch", 1)
    assert seen(second) == ("by_launch", 2)
    assert seen(third, "out") == ("possible", None)


def test_interleaved_views_overlap_by_their_span(simulated):
    """Columns of one matrix share no byte, but are taken to: never the other way about."""
    matrix, x = ones(simulated, 8, 2), ones(simulated, 8)
    with lazytrace.trace() as tracer:
        graph = replayed(simulated, lambda: [scale(matrix[:, 0]), scale(matrix[:, 1]), scale(x)])
        records = tracer.records()
        del graph
    assert [seen(record) for record in records] == [
        ("by_launch", 1),
        ("possible", None),
        ("possible", None),
    ]


def test_an_input_that_the_same_launch_overwrites_through_another_argument(simulated):
    """What it found is gone: for the argument that is only read, its own launch is named."""
    x = ones(simulated, 8)
    with lazytrace.trace() as tracer:
        graph = replayed(simulated, lambda: copy(x, x))
        (record,) = tracer.records()
        del graph
    assert seen(record, "x") == ("by_launch", 0)
    assert seen(record, "out") == ("possible", None)


def test_a_launch_that_did_not_run_overwrites_nothing(simulated):
    """An empty grid is no writer."""
    x = ones(simulated, 8)

    def body():
        scale(x)
        kernels.scale_[(0,)](x, 8, 2.0, BLOCK=16)

    with lazytrace.trace() as tracer:
        graph = replayed(simulated, body)
        first, second = tracer.records()
        del graph
    assert seen(first) == ("possible", None)
    assert second.outcome == "empty_grid"


def test_what_torch_writes_is_invisible_and_stays_possible(simulated):
    """Zeroed by a torch operation in the same graph: no launch is named, and nothing is denied."""
    x = ones(simulated, 8)
    with lazytrace.trace() as tracer:
        graph = replayed(simulated, lambda: [scale(x), x.zero_()])
        (record,) = tracer.records()
        del graph
    assert record.args["x"].values.max == 0.0
    assert seen(record) == ("possible", None)


def test_a_reading_after_the_replay_does_not_call_a_cleaned_output_clean(device, tmp_path):
    """C16 deferred: launch 3 of 6 divides by zero, launch 5 cleans: its finite value is another's.

    The first launch has the id 0.
    """
    x, y, out = ones(device, 8), torch.zeros(8, device=device.torch_device), ones(device, 8)

    def body():
        scale(x)
        scale(y)
        divide[(1,)](x, y, out, 8, BLOCK=16)
        scale(x)
        clean[(1,)](out, 8, BLOCK=16)
        scale(x)

    with lazytrace.trace(tmp_path / "t.ndjson") as tracer:
        graph = replayed(device, body)
        records = tracer.records()
        assert tracer.problems() == []
        del graph
    made = records[2]
    assert made.kernel.name == "divide"
    assert made.args["out"].values.posinf_count == 0
    assert seen(made, "out") == ("by_launch", 4)
    assert seen(records[4]) == ("possible", None)
    assert list(lazytrace.read(tracer.path).launches) == tracer.records()


def test_every_replay_is_judged_alike(simulated):
    """Reading again after a later replay gives the same answer with that replay's number."""
    x = ones(simulated, 8)
    with lazytrace.trace() as tracer:
        graph = replayed(simulated, lambda: [scale(x), scale(x, 3.0)])
        tracer.flush()
        graph.replay()
        tracer.flush(wait=True, again=True)
        records = tracer.records()
    assert [seen(record) for record in records] == [("by_launch", 1), ("possible", None)]
    assert {record.args["x"].observed.replay for record in records} == {2}


def test_the_index_goes_with_its_graph(simulated):
    """Nothing of a capture's ranges is left once its graph is reset."""

    def alive():
        gc.collect()
        return sum(type(thing) is WriteIndex for thing in gc.get_objects())

    x = ones(simulated, 8)
    before = alive()
    with lazytrace.trace() as tracer:
        graph = replayed(simulated, lambda: scale(x))
        tracer.flush()
        assert alive() == before + 1
        graph.reset()
        tracer.flush()
        assert alive() == before


# Eager launches


def test_an_eager_launch_is_told_who_overwrote_it_before_the_reading(device):
    """Launches whose values are not sampled count as well; the latest one is named."""
    x, other = ones(device, 8), ones(device, 8)
    with lazytrace.trace(eager_samples=1, flush_at="exit") as tracer:
        for factor in (2.0, 3.0, 4.0):
            scale(x, factor)
        copy(x, other)
        device.synchronize()
        first, _, third, fourth = tracer.records()
    assert first.args["x"].values.max == 24.0
    assert seen(first) == ("by_launch", 2)
    assert third.args["x"].state == "skipped"
    assert seen(fourth) == ("possible", None)


def test_eager_launches_before_the_one_that_is_read_do_not_count(simulated):
    """Only what came later can have overwritten it."""
    x = ones(simulated, 8)
    with lazytrace.trace(flush_at="exit") as tracer:
        scale(x, 3.0)
        kernels.copy[(1,)](x, x[:4], 4, BLOCK=16)
        first, second = tracer.records()
    assert seen(first) == ("by_launch", 1)
    assert seen(second, "out") == ("possible", None)


def test_of_eager_writes_the_latest_are_remembered():
    """A launch whose overwriting was forgotten says possible, never no."""
    with simulate(execute=False):
        x, many = torch.ones(8), torch.ones(1100, 1)
        with lazytrace.trace(eager_samples=1, flush_at="exit") as tracer:
            copy(x, x)
            scale(x)
            for row in many:
                scale(row)
            records = tracer.records()
    assert len(records) == 1102
    assert seen(records[0], "out") == ("possible", None)


# Expanding


def test_a_container_shows_the_corrected_tensor_too(simulated):
    """The last launch of a run kept its own value, under its path and in its descriptor."""
    x = ones(simulated, 8)
    with lazytrace.trace() as tracer:
        graph = replayed(simulated, lambda: [scale(x), scale(x)])
        (run,) = tracer.records()
        del graph
    base = run.args["x"]
    held = DescriptorArg("TensorDescriptor", base, (8,), (1,), (8,))
    args = {"d": held, "d.base": base, "t": TupleArg("tuple", (base, held))}
    first, last = attrs.evolve(run, args=args).expanded()
    assert first.args == args
    assert seen(last, "d.base") == ("possible", None)
    assert last.args["d"].base == last.args["d.base"]
    assert last.args["t"].items == (last.args["d.base"], last.args["d"])
