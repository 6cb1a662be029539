from __future__ import annotations

import time

import pytest
from trace_lines import args, capture, kernel, launch, nested_args, problem, reading, tensor

from lazytrace._trace.join import Joiner
from lazytrace.lines import EndLine, Line, ValuesLine
from lazytrace.records import (
    Arg,
    ArgState,
    CaptureRef,
    CaptureState,
    LaunchRecord,
    LaunchState,
    Outcome,
    Pool,
    Role,
    ScalarArg,
    TensorArg,
)


def joined(*lines: Line) -> Joiner:
    joiner = Joiner()
    for line in (kernel(), args(), *lines):
        joiner.add(line)
    return joiner


def only(*lines: Line) -> LaunchRecord:
    [record] = joined(*lines).records()
    return record


def tensor_arg(record: LaunchRecord, path: str = "x") -> TensorArg:
    arg: Arg = record.args[path]
    assert isinstance(arg, TensorArg)
    return arg


def test_a_record_has_what_its_lines_say() -> None:
    """A captured launch stands alone: kernel, place in the capture, replays, arguments."""
    record = only(capture(), launch(5, capture=1, index=7, mark="m", count=2))
    assert record.id == 5
    assert record.kernel == kernel().kernel
    assert record.capture == CaptureRef(graph=4, name="bs=8", epoch=0, index=7, cuda_id=9)
    assert (record.replays, record.grid, record.count, record.mark) == (3, (6, 1, 1), 2, "m")
    assert (record.time_ns, record.stream, record.thread) == (105, 11, 12)
    assert list(record.args) == ["x", "out", "n", "BLOCK"]
    assert record.args["n"] == ScalarArg("int", 6)
    assert record.outcome == "submitted"


def test_an_unread_tensor_has_the_launch_s_state() -> None:
    """Until a reading comes, a tensor's state and reason are those of its launch's line."""
    record = only(launch(0, values=ArgState.SKIPPED, reason="eager_samples"))
    assert tensor_arg(record).state is ArgState.SKIPPED
    assert tensor_arg(record).reason == "eager_samples"
    assert record.state is LaunchState.COMPLETE
    assert only(launch(0)).state is LaunchState.PENDING


def test_a_reading_replaces_the_state_by_path() -> None:
    """Values go to the path they name; the launch is complete when no tensor is pending."""
    joiner = joined(launch(0), ValuesLine((0,), {"x": reading()}))
    [record] = joiner.records()
    assert tensor_arg(record).state is ArgState.MATERIALIZED
    assert tensor_arg(record).values == reading().values
    assert tensor_arg(record).observed == reading().observed
    assert tensor_arg(record, "out").state is ArgState.PENDING
    assert record.state is LaunchState.PENDING
    joiner.add(ValuesLine((0,), {"out": reading(0.0)}))
    [record] = joiner.records()
    assert record.state is LaunchState.COMPLETE
    assert tensor_arg(record) == tensor_arg(only(launch(0), ValuesLine((0,), {"x": reading()})))


def test_a_later_reading_of_a_path_wins() -> None:
    """Reading again replaces the values of the paths it names and leaves the others."""
    record = only(
        launch(0),
        ValuesLine((0,), {"x": reading(), "out": reading()}),
        ValuesLine((0,), {"x": reading(-9.0)}),
    )
    assert tensor_arg(record).values == reading(-9.0).values
    assert tensor_arg(record, "out").values == reading().values


def test_both_sides_of_a_reading_arrive() -> None:
    """Values after the launch, and when they were read, are joined too."""
    full = reading(values_after=reading(5.0).values, observed_after=reading().observed)
    arg = tensor_arg(only(launch(0), ValuesLine((0,), {"x": full})))
    assert (arg.values_after, arg.observed_after) == (full.values_after, full.observed_after)


def test_an_empty_tensor_needs_no_reading() -> None:
    """A tensor without elements is empty, and keeps no launch pending."""
    record = only(args(2, x=tensor(shape=(0, 3), numel=0, nbytes=0)), launch(0, args=2))
    assert tensor_arg(record).state is ArgState.EMPTY
    assert tensor_arg(record).values is None
    assert record.state is LaunchState.COMPLETE


@pytest.mark.parametrize(
    ("storages", "pools"),
    [((2,), (Pool.EXTERNAL, Pool.GRAPH)), ((), (Pool.EXTERNAL,) * 2), (None, (Pool.UNKNOWN,) * 2)],
)
def test_the_pool_follows_from_the_capture(storages: object, pools: tuple[Pool, Pool]) -> None:
    """A captured launch's tensor lies in the graph's pool, outside, or one cannot tell."""
    record = only(capture(graph_storages=storages), launch(0, capture=1, index=0))
    assert (tensor_arg(record).pool, tensor_arg(record, "out").pool) == pools


def test_an_eager_launch_has_no_pool() -> None:
    """Pools are told for captured launches only."""
    assert tensor_arg(only(capture(), launch(0))).pool is Pool.UNKNOWN


def test_roles_come_from_the_kernel() -> None:
    """Each path has its kernel's role, and an unnamed one is unknown."""
    record = only(args(2, x=tensor(), out=tensor(), y=tensor()), launch(0, args=2))
    roles = [tensor_arg(record, path).role for path in ("x", "out", "y")]
    assert roles == [Role.READ, Role.WRITE, Role.UNKNOWN]


@pytest.mark.parametrize(
    ("state", "launch_state", "arg_state", "reason"),
    [
        (CaptureState.FAILED, LaunchState.CAPTURE_FAILED, ArgState.SKIPPED, "capture_failed"),
        (
            CaptureState.NEVER_REPLAYED,
            LaunchState.NEVER_REPLAYED,
            ArgState.EXPIRED,
            "never_replayed",
        ),
        (CaptureState.OPEN, LaunchState.PENDING, ArgState.PENDING, None),
        (CaptureState.CAPTURED, LaunchState.PENDING, ArgState.PENDING, None),
    ],
)
def test_the_state_follows_the_capture(
    state: CaptureState, launch_state: LaunchState, arg_state: ArgState, reason: str | None
) -> None:
    """What became of the capture decides on its launches and on values that never came."""
    record = only(capture(state=state), launch(0, capture=1, index=0))
    assert record.state is launch_state
    assert (tensor_arg(record).state, tensor_arg(record).reason) == (arg_state, reason)


def test_a_captured_launch_completes_with_its_readings() -> None:
    """Every tensor read: complete."""
    values = ValuesLine((0,), {"x": reading(), "out": reading()})
    assert only(capture(), launch(0, capture=1, index=0), values).state is LaunchState.COMPLETE


def test_a_failed_capture_keeps_what_was_read() -> None:
    """Only what is still pending is given up when a capture fails."""
    record = only(
        capture(state=CaptureState.FAILED),
        launch(0, capture=1, index=0),
        ValuesLine((0,), {"x": reading()}),
    )
    assert tensor_arg(record).state is ArgState.MATERIALIZED
    assert tensor_arg(record, "out").reason == "capture_failed"


def test_later_lines_of_an_id_replace_earlier_ones() -> None:
    """A run that grew and a capture that was replayed show their last state."""
    joiner = joined(capture(replays=0), launch(0, capture=1, index=0))
    joiner.add(launch(0, capture=1, index=0, count=40))
    joiner.add(capture(replays=5))
    [record] = joiner.records()
    assert (record.count, record.replays) == (40, 5)


def test_containers_show_the_tensors_of_their_paths() -> None:
    """A tuple's and a descriptor's tensor is the very object that stands under its path."""
    record = only(
        nested_args(2),
        launch(0, args=2),
        ValuesLine((0,), {path: reading() for path in ("ts[0]", "ts[1].left", "desc.base")}),
    )
    ts, desc = record.args["ts"], record.args["desc"]
    assert ts.items[0] is record.args["ts[0]"]  # type: ignore[union-attr]
    assert ts.items[1].items[0] is record.args["ts[1].left"]  # type: ignore[union-attr]
    assert desc.base is record.args["desc.base"]  # type: ignore[union-attr]
    assert tensor_arg(record, "desc.base").values == reading().values
    assert record.state is LaunchState.COMPLETE


def test_records_are_oldest_first_and_filtered() -> None:
    """Records come by id; by kernel pattern or patterns, case and all; captured or not."""
    joiner = joined(
        kernel(2, "mul_kernel"), capture(), launch(9), launch(2, kernel=2), launch(3, capture=1)
    )

    def ids(*given: object, **named: object) -> list[int]:
        return [record.id for record in joiner.records(*given, **named)]  # type: ignore[arg-type]

    assert ids() == [2, 3, 9]
    assert ids("mul*") == [2]
    assert ids(["mul_kernel", "ad?_*"]) == [2, 3, 9]
    assert ids("ADD*") == []
    assert ids([]) == []
    assert ids(captured=True) == [3]
    assert ids(captured=False) == [2, 9]
    assert ids("add*", captured=False) == [9]


def test_expand_gives_one_record_per_launch() -> None:
    """A run owns the ids [id, id + count), and its captured launches consecutive indices."""
    joiner = joined(capture(), launch(4, count=3, capture=1, index=6), launch(7))
    records = joiner.records(expand=True)
    assert [record.id for record in records] == [4, 5, 6, 7]
    assert [record.capture and record.capture.index for record in records] == [6, 7, 8, None]
    assert {record.count for record in records} == {1}


def test_a_launch_without_its_lines_is_counted() -> None:
    """A launch whose kernel, arguments or capture is missing is no record, but is not forgotten."""
    joiner = joined(launch(0), launch(1, kernel=9), launch(2, args=9), launch(3, capture=9))
    assert [record.id for record in joiner.records()] == [0]
    assert joiner.coverage().dropped == {"incomplete": 3}


def test_coverage_counts_arguments_and_replays() -> None:
    """Replays are summed over captures, tensor arguments by what became of them."""
    joiner = joined(
        capture(),
        capture(2, replays=4, replays_read=0),
        launch(0),
        launch(1),
        launch(2, values=ArgState.SKIPPED, outcome=Outcome.FAILED),
        ValuesLine((0, 1), {"x": reading()}),
        EndLine(1, 3, 7, unseen_launches=6, dropped={"max_pending": 2}),
    )
    coverage = joiner.coverage()
    assert (coverage.replays_read, coverage.replays_run) == (1, 7)
    assert (coverage.materialized, coverage.pending, coverage.skipped) == (2, 2, 2)
    assert (coverage.unseen_launches, coverage.dropped) == (6, {"max_pending": 2})


def test_equal_problems_are_one() -> None:
    """A problem that is told twice is listed once, in the order of arrival."""
    joiner = joined(problem(launch=2), problem(launch=1), problem(launch=2))
    assert [found.launch for found in joiner.problems] == [2, 1]


def test_values_stay_with_their_launches() -> None:
    """Launches that share arguments, but not readings, keep their own values."""
    joiner = joined(launch(0), launch(1), launch(2))
    joiner.add(ValuesLine((0, 1), {"x": reading(1.0)}))
    joiner.add(ValuesLine((1, 2), {"x": reading(2.0)}))
    lows = [record.args["x"].values.min for record in joiner.records()]  # type: ignore[union-attr]
    assert lows == [1.0, 2.0, 2.0]


def test_many_launches_that_share_are_quick() -> None:
    """100,000 launches with shared arguments and readings are joined once, not each."""
    joiner = joined(*(launch(number) for number in range(100_000)))
    for start in range(0, 100_000, 1000):
        joiner.add(ValuesLine(tuple(range(start, start + 1000)), {"x": reading()}))
    began = time.process_time()
    records = joiner.records()
    assert time.process_time() - began < 5
    assert len(records) == 100_000
    assert len({id(record.args) for record in records}) == 100
