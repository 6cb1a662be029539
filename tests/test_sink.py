from __future__ import annotations

import gc
import tracemalloc

import attrs
from trace_lines import args, capture, kernel, launch, problem, reading, sample_trace, tensor

from lazytrace._trace.join import Joiner
from lazytrace._trace.sink import MemorySink, Sink
from lazytrace.lines import ArgsLine, Line, ValuesLine


def filled(max_records: int, *lines: Line) -> MemorySink:
    sink = MemorySink(max_records)
    for line in lines:
        sink.write(line)
    return sink


def test_memory_answers_as_the_joined_lines() -> None:
    """A sink that had room for all answers with the records of its lines."""
    joiner = Joiner()
    for line in sample_trace():
        joiner.add(line)
    sink: Sink = filled(10, *sample_trace())
    assert isinstance(sink, MemorySink)
    assert sink.records() == joiner.records()
    assert sink.records("add*", captured=True) == joiner.records("add*", captured=True)
    assert sink.records(expand=True) == joiner.records(expand=True)
    assert sink.problems == joiner.problems
    assert sink.coverage() == joiner.coverage()
    assert sink.dropped == {}


def test_memory_still_answers_after_close() -> None:
    """Closing and flushing memory changes nothing."""
    sink = filled(10, kernel(), args(), launch(0))
    sink.flush()
    sink.close()
    assert [record.id for record in sink.records()] == [0]


def test_the_oldest_runs_are_evicted_and_their_launches_counted() -> None:
    """Beyond max_records the oldest runs go, counted by their launches."""
    sink = filled(2, kernel(), args(), launch(0, count=5), launch(5), launch(6), launch(7))
    assert [record.id for record in sink.records()] == [6, 7]
    assert sink.dropped == {"max_records": 6}
    assert sink.coverage().dropped == {"max_records": 6}


def test_a_run_that_grows_is_one_record() -> None:
    """Writing a launch's id again replaces it and evicts nothing."""
    sink = filled(2, kernel(), args(), launch(0), launch(1), launch(1, count=9))
    assert [record.count for record in sink.records()] == [1, 9]
    assert sink.dropped == {}


def test_readings_of_evicted_launches_are_not_kept() -> None:
    """Values reach the launches that are left, and no trace of the others stays."""
    sink = filled(1, kernel(), args(), launch(0), launch(1))
    sink.write(ValuesLine((0, 1), {"x": reading()}))
    sink.write(ValuesLine((0,), {"out": reading()}))
    [record] = sink.records()
    assert record.args["x"].values == reading().values  # type: ignore[union-attr]
    assert record.args["out"].values is None  # type: ignore[union-attr]


def test_arguments_live_as_long_as_a_launch_uses_them() -> None:
    """Sets of arguments that no retained launch uses go, all but the latest thousand."""
    sink = filled(3, kernel(), args(0, x=tensor()))
    for number in range(1, 1500):
        sink.write(args(number, x=tensor(storage=number)))
        sink.write(launch(number, args=number))
    sink.write(launch(1500, args=600))
    sink.write(launch(1501, args=3))
    assert [record.id for record in sink.records()] == [1499, 1500]
    assert sink.coverage().dropped["incomplete"] == 1


def test_shared_arguments_survive_an_eviction() -> None:
    """Arguments stay while any retained launch, old or new, uses them."""
    sink = filled(1, kernel(), args(), capture())
    for number in range(10):
        sink.write(args(2 + number, x=tensor()))
        sink.write(launch(number, capture=1, index=number))
    [record] = sink.records()
    assert record.id == 9
    assert record.capture is not None


def test_problems_are_bounded() -> None:
    """The first max_records problems stay, the others are counted."""
    sink = filled(2, *(problem(launch=number) for number in range(5)))
    assert [found.launch for found in sink.problems] == [0, 1]
    assert sink.dropped == {"max_problems": 3}


def test_memory_is_bounded_by_max_records() -> None:
    """Ten times as many launches, arguments, captures and readings take no more memory."""

    def kept_bytes(launches: int) -> int:
        gc.collect()
        tracemalloc.start()
        sink = filled(50, kernel())
        for number in range(launches):
            sink.write(ArgsLine(number, {"x": tensor(storage=number)}))
            sink.write(capture(number))
            sink.write(launch(number, args=number, capture=number, index=0))
            sink.write(attrs.evolve(VALUES, launches=(number,)))
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(sink.records()) == 50
        return kept

    kept_bytes(100)
    assert kept_bytes(6000) < 1.2 * kept_bytes(1200)


VALUES = ValuesLine((0,), {"x": reading()})
