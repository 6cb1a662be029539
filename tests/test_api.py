"""Every function, option and error of the public API."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import case_kernels
import kernels
import pytest
import torch

import lazytrace
from lazytrace.testing import simulate

pytestmark = pytest.mark.core

ALL_OPTIONS = {
    "values": "deferred",
    "flush_at": "sync",
    "kernels": None,
    "exclude": None,
    "eager_samples": 2,
    "trial_values": False,
    "max_read_bytes": 1 << 30,
    "stacks": False,
    "ir": False,
    "save_tensors": 0,
    "on_problem": "record",
    "max_pending": 1_000_000,
    "max_records": 100_000,
    "max_file_bytes": None,
}


def launch(x, value=7, grid=(1,)):
    case_kernels.ignore[grid](x, x, value)


def read_lines(path):
    return Path(path).read_text().splitlines()


# Before, twice, after


@pytest.mark.parametrize(
    "call",
    [
        lazytrace.records,
        lazytrace.problems,
        lazytrace.flush,
        lazytrace.disable,
        lambda: lazytrace.mark("step"),
        lambda: lazytrace.name_graph(object(), "graph"),
    ],
    ids=["records", "problems", "flush", "disable", "mark", "name_graph"],
)
def test_before_any_enable_there_is_nothing_to_answer(call):
    """Each function that needs a tracer says that none was ever enabled."""
    with pytest.raises(lazytrace.NotEnabledError, match=r"lazytrace\.enable\(\)"):
        call()


def test_paused_before_any_enable_does_nothing():
    """A library may pause tracing without knowing whether there is any."""
    with lazytrace.paused():
        pass


def test_enable_gives_the_options_their_documented_defaults(simulated):
    """An enable() without arguments is the contract's defaults, in memory."""
    tracer = lazytrace.enable()
    shown = {name: getattr(tracer.options, name) for name in ALL_OPTIONS}
    assert shown == ALL_OPTIONS
    assert tracer.path is None
    lazytrace.disable()


def test_enable_again_with_equal_options_is_the_same_tracer(simulated, tmp_path):
    """Equal options, spelled differently or not, return the active tracer."""
    tracer = lazytrace.enable(tmp_path / "t.ndjson", kernels="add*")
    assert lazytrace.enable(str(tmp_path / "t.ndjson"), kernels=["add*"]) is tracer
    lazytrace.disable()


@pytest.mark.parametrize("options", [{"values": "off"}, {"eager_samples": None}])
def test_enable_again_with_other_options_is_an_error(simulated, options):
    """The active tracer stays as it is."""
    tracer = lazytrace.enable()
    with pytest.raises(lazytrace.AlreadyEnabledError, match="other options"):
        lazytrace.enable(**options)
    assert lazytrace.enable() is tracer
    launch(torch.ones(2))
    assert len(lazytrace.records()) == 1
    lazytrace.disable()


def test_trace_never_joins_an_active_tracer(simulated):
    """trace() while a tracer is active raises, also with equal options."""
    lazytrace.enable()
    with pytest.raises(lazytrace.AlreadyEnabledError), lazytrace.trace():
        pass
    launch(torch.ones(2))
    assert len(lazytrace.records()) == 1
    lazytrace.disable()


def test_trace_ends_with_its_block_whatever_happens_in_it(simulated):
    """The user's exception passes unchanged, and the tracer is disabled."""
    error = ValueError("the user's")
    with pytest.raises(ValueError, match="the user's") as caught, lazytrace.trace() as tracer:
        launch(torch.ones(2))
        raise error
    assert caught.value is error
    launch(torch.ones(2))
    assert [record.count for record in tracer.records()] == [1]


def test_disable_is_idempotent_and_memory_still_answers(simulated):
    """After disable() records and problems answer, flush has nothing to do, launches are unseen."""
    x = torch.ones(2)
    tracer = lazytrace.enable()
    launch(x)
    lazytrace.disable()
    before = lazytrace.records()
    lazytrace.disable()
    tracer.disable()
    launch(x)
    assert lazytrace.records() == tracer.records() == before
    assert [record.count for record in before] == [1]
    assert before[0].args["x"].values.max == 1.0
    assert lazytrace.problems() == []
    result = lazytrace.flush()
    assert (result.completed, result.still_due) == (0, 0)


def test_a_second_trace_starts_empty(simulated):
    """The module's functions answer for the latest tracer, the first keeps its own records."""
    x = torch.ones(2)
    with lazytrace.trace() as first:
        launch(x)
    with lazytrace.trace() as second:
        assert lazytrace.records() == []
        launch(x, value=8)
        launch(x, value=9)
    assert [record.args["value"].value for record in first.records()] == [7]
    assert [record.args["value"].value for record in second.records()] == [8, 9]
    assert lazytrace.records() == second.records()


def test_the_module_delegates_to_the_active_tracer(simulated):
    """Functions and methods of the same name give the same answers."""
    tracer = lazytrace.enable()
    launch(torch.ones(2))
    assert lazytrace.records() == tracer.records()
    assert lazytrace.problems() == tracer.problems()
    assert lazytrace.flush() == tracer.flush()
    lazytrace.disable()


# What is recorded


def test_a_record_has_every_field_of_the_contract(simulated):
    """One eager launch, in full."""
    x = torch.arange(6.0).reshape(2, 3)
    with lazytrace.trace() as tracer:
        lazytrace.mark("step 12")
        launch(x, grid=(2, 3))
        (record,) = tracer.records()
    assert (record.id, record.grid, record.count) == (0, (2, 3, 1), 1)
    assert (record.outcome, record.phase, record.state) == ("submitted", "run", "complete")
    assert (record.stream, record.device, record.mark) == (0, 0, "step 12")
    assert (record.capture, record.replays) == (None, 0)
    assert list(record.args) == ["x", "y", "value"]
    assert (record.kernel.name, record.kernel.arch, record.kernel.backend) == ("ignore", 90, "cuda")
    assert (record.kernel.num_warps, record.kernel.num_ctas) == (4, 1)
    assert record.kernel.file == case_kernels.__file__
    assert "Takes anything and does nothing" in record.kernel.source
    assert record.kernel.n_regs == 32
    assert abs(record.time_ns - time.time_ns()) < 600e9
    argument = record.args["x"]
    assert (argument.type, argument.dtype, argument.device) == ("Tensor", "float32", "cpu")
    assert (argument.shape, argument.strides) == ((2, 3), (3, 1))
    assert (argument.numel, argument.element_size, argument.nbytes) == (6, 4, 24)
    values = argument.values
    assert (values.min, values.max, values.mean, values.zero_count) == (0.0, 5.0, 2.5, 1)
    assert values.std == pytest.approx(3.5**0.5)
    assert argument.observed.point == "on_request"
    assert (argument.observed.overwritten, argument.observed.raced) == ("possible", False)


def test_runs_own_consecutive_ids_and_expand_gives_each_launch_its_own(simulated):
    """A run of three, then one: ids 0 and 3; expanded 0, 1, 2, 3."""
    x = torch.ones(2)
    with lazytrace.trace() as tracer:
        for value in (5, 5, 5, 6):
            launch(x, value=value)
        runs = tracer.records()
        launches = tracer.records(expand=True)
    assert [(run.id, run.count) for run in runs] == [(0, 3), (3, 1)]
    assert [(one.id, one.count) for one in launches] == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert [one.args["value"].value for one in launches] == [5, 5, 5, 6]


def test_expanded_captured_launches_have_their_own_index(simulated):
    """The second launch of a captured run has index 1."""
    x = torch.ones(2)
    with lazytrace.trace() as tracer:
        case_kernels.captured(lambda: [launch(x), launch(x), launch(x, value=9)])
        launches = tracer.records(expand=True)
    assert [one.capture.index for one in launches] == [0, 1, 2]


def test_records_are_filtered_by_kernel_and_by_capture(simulated):
    """Patterns match with their case; captured= selects in, out of, or both."""
    x, n = torch.ones(4), 4
    with lazytrace.trace() as tracer:
        kernels.copy[(1,)](x, x, n, BLOCK=4)
        launch(x)
        case_kernels.captured(lambda: kernels.scale_[(1,)](x, n, 2.0, BLOCK=4))

        def names(*args, **options):
            return [record.kernel.name for record in tracer.records(*args, **options)]

        assert names() == ["copy", "ignore", "scale_"]
        assert names("*o*") == ["copy", "ignore"]
        assert names("COPY") == []
        assert names(["copy", "sc?le_"]) == ["copy", "scale_"]
        assert names(captured=True) == ["scale_"]
        assert names(captured=False) == ["copy", "ignore"]
        assert names("ignore", captured=True) == []


def test_kernels_and_exclude_choose_what_is_recorded(simulated):
    """A launch of an excluded kernel takes no id."""
    x, n = torch.ones(4), 4
    with lazytrace.trace(kernels=["copy", "ig*"], exclude="*e") as tracer:
        launch(x)
        kernels.copy[(1,)](x, x, n, BLOCK=4)
        kernels.scale_[(1,)](x, n, 2.0, BLOCK=4)
        assert [(record.id, record.kernel.name) for record in tracer.records()] == [(0, "copy")]


def test_nothing_is_recorded_while_paused(simulated):
    """Pauses nest, also the tracer's with the module's, and end with an exception."""
    x = torch.ones(2)
    with lazytrace.trace() as tracer:
        with pytest.raises(ValueError, match="inner"), lazytrace.paused():
            with tracer.paused():
                launch(x, value=2)
            launch(x, value=3)
            raise ValueError("inner")
        launch(x, value=4)
        assert [record.args["value"].value for record in tracer.records()] == [4]


def test_a_mark_labels_the_launches_that_follow(simulated):
    """Launches under different marks are different runs; None ends a mark."""
    x = torch.ones(2)
    with lazytrace.trace() as tracer:
        launch(x)
        lazytrace.mark("step 1")
        launch(x)
        launch(x)
        tracer.mark("step 2")
        launch(x)
        lazytrace.mark(None)
        launch(x)
        shown = [(record.mark, record.count) for record in tracer.records()]
    assert shown == [(None, 1), ("step 1", 2), ("step 2", 1), (None, 1)]


@pytest.mark.parametrize("when", ["before", "after", "replayed"])
def test_a_named_graph_is_named_in_the_records_of_its_launches(simulated, tmp_path, when):
    """The name counts whenever it is given, in memory and in the file."""
    x, graph = torch.ones(2), torch.cuda.CUDAGraph()
    with lazytrace.trace(tmp_path / "t.ndjson") as tracer:
        if when == "before":
            lazytrace.name_graph(graph, "bs=8")
        with torch.cuda.graph(graph):
            launch(x)
        if when == "after":
            lazytrace.name_graph(graph, "bs=8")
        if when == "replayed":
            graph.replay()
            torch.cuda.synchronize()
            tracer.name_graph(graph, "bs=8")
        assert [record.capture.name for record in tracer.records()] == ["bs=8"]
    assert [record.capture.name for record in lazytrace.read(tracer.path).launches] == ["bs=8"]


def test_a_name_holds_for_every_capture_of_the_graph(simulated):
    """A graph that was reset and captured again has two epochs of one graph and name."""
    x, graph = torch.ones(2), torch.cuda.CUDAGraph()
    with lazytrace.trace() as tracer:
        lazytrace.name_graph(graph, "decode")
        for value in (5, 6):
            with torch.cuda.graph(graph):
                launch(x, value=value)
            graph.replay()
            torch.cuda.synchronize()
            graph.reset()
        captures = [record.capture for record in tracer.records()]
    assert [(one.graph, one.epoch, one.name) for one in captures] == [
        (0, 0, "decode"),
        (0, 1, "decode"),
    ]


# Options that decide about values


def test_values_off_keeps_descriptions_only(simulated):
    """No argument is ever pending, a captured launch is complete when its capture ended."""
    x = torch.ones(2)
    with lazytrace.trace(values="off") as tracer:
        launch(x)
        graph = case_kernels.captured(lambda: launch(x))
        assert [record.state for record in tracer.records()] == ["complete", "complete"]
        graph.replay()
        torch.cuda.synchronize()
        launches = tracer.records()
    assert [record.args["x"].state for record in launches] == ["off", "off"]
    assert [record.args["x"].values for record in launches] == [None, None]
    assert [record.replays for record in launches] == [0, 1]
    assert launches[1].args["x"].shape == (2,)


@pytest.mark.parametrize(("samples", "read"), [(0, 0), (1, 1), (2, 2), (3, 3), (None, 4)])
def test_eager_samples_bounds_whose_values_are_read(simulated, samples, read):
    """The first eager launches of a compiled kernel are read, the rest say why not."""
    x = torch.ones(2)
    with lazytrace.trace(eager_samples=samples) as tracer:
        for value in (5, 6, 7, 8):
            launch(x, value=value)
        arguments = [record.args["x"] for record in tracer.records()]
    assert [argument.state for argument in arguments] == ["materialized"] * read + ["skipped"] * (
        4 - read
    )
    assert {argument.reason for argument in arguments[read:]} <= {"not_sampled"}


def test_eager_samples_do_not_count_captured_launches(simulated):
    """Every captured launch is read, however many samples there are."""
    x = torch.ones(2)
    with lazytrace.trace(eager_samples=0) as tracer:
        graph = case_kernels.captured(lambda: [launch(x, value=value) for value in (5, 6, 7)])
        graph.replay()
        torch.cuda.synchronize()
        states = [record.args["x"].state for record in tracer.records()]
    assert states == ["materialized"] * 3


def test_max_read_bytes_leaves_the_rest_due(simulated):
    """Small views first; the next flush goes on; a view over the limit is skipped."""
    small, large, huge = torch.ones(10), torch.ones(20), torch.ones(1000)
    with lazytrace.trace(max_read_bytes=100, eager_samples=None, flush_at="exit") as tracer:
        for value, tensor in enumerate((huge, large, small), start=5):
            launch(tensor, value=value)
        first = tracer.flush()
        assert (first.completed, first.still_due, first.reason) == (2, 1, "max_read_bytes")
        second = tracer.flush()
        assert (second.completed, second.still_due, second.reason) == (1, 0, None)
        launches = tracer.records()
    assert [record.args["x"].state for record in launches] == [
        "skipped",
        "materialized",
        "materialized",
    ]
    assert launches[0].args["x"].reason == "max_read_bytes"


def test_flush_reads_captured_launches_again_only_when_asked(simulated):
    """Values are the first reading's until flush(again=True) takes the latest replay's."""
    x = torch.ones(4)
    with lazytrace.trace() as tracer:
        graph = case_kernels.captured(lambda: kernels.scale_[(1,)](x, 4, 2.0, BLOCK=4))
        shown = []
        for _ in range(3):
            graph.replay()
            torch.cuda.synchronize()
            (record,) = tracer.records()
            shown.append((record.args["x"].values.max, record.args["x"].observed.replay))
        result = tracer.flush(again=True)
        (record,) = tracer.records()
    assert shown == [(2.0, 1)] * 3
    assert record.replays == 3
    assert (result.completed, result.still_due) == (1, 0)
    assert (record.args["x"].values.max, record.args["x"].observed.replay) == (8.0, 3)


def test_flush_at_exit_ignores_synchronisations(simulated):
    """A flush then comes from a request only."""
    x = torch.ones(4)
    with lazytrace.trace(flush_at="exit") as tracer:
        graph = case_kernels.captured(lambda: kernels.scale_[(1,)](x, 4, 2.0, BLOCK=4))
        for _ in range(2):
            graph.replay()
            torch.cuda.synchronize()
        (record,) = tracer.records()
    assert record.args["x"].values.max == 4.0
    assert (record.args["x"].observed.point, record.args["x"].observed.replay) == ("on_request", 2)


def test_flush_at_replay_reads_the_first_replay(simulated, tmp_path):
    """Values are there without any synchronisation, and the session warns about timings."""
    x = torch.ones(4)
    with lazytrace.trace(tmp_path / "t.ndjson", flush_at="replay") as tracer:
        graph = case_kernels.captured(lambda: kernels.scale_[(1,)](x, 4, 2.0, BLOCK=4))
        graph.replay()
        graph.replay()
    (record,) = tracer.records()
    assert record.args["x"].values.max == 2.0
    assert (record.args["x"].observed.point, record.args["x"].observed.replay) == (
        "after_replay",
        1,
    )
    session = lazytrace.read(tracer.path).session
    assert ["timings" in note for note in session.notes] == [True]


@pytest.mark.parametrize(
    "synchronize",
    [
        lambda: torch.cuda.synchronize(),
        lambda: torch.cuda.synchronize(0),
        lambda: torch.cuda.synchronize(device="cuda:0"),
        lambda: torch.accelerator.synchronize(),
        lambda: torch.cuda.current_stream().synchronize(),
    ],
    ids=["cuda", "cuda(0)", "cuda(device=)", "accelerator", "stream"],
)
def test_the_users_synchronisation_is_a_flush_point(simulated, synchronize):
    """What a replay made due is read when the program's own synchronisation returned."""
    x = torch.ones(4)
    with lazytrace.trace() as tracer:
        graph = case_kernels.captured(lambda: kernels.scale_[(1,)](x, 4, 2.0, BLOCK=4))
        graph.replay()
        synchronize()
        x.fill_(100.0)
        (record,) = tracer.records()
    assert record.args["x"].values.max == 2.0
    assert record.args["x"].observed.point == "after_replay"


def test_an_automatic_flush_waits_for_nothing(simulated):
    """A busy stream's launches stay due, others are read; flush(wait=True) reads the rest."""
    x, busy = torch.ones(2), torch.cuda.Stream()
    with lazytrace.trace() as tracer:
        with torch.cuda.stream(busy):
            launch(x, value=5)
        launch(x, value=6)
        with simulated.simulation.busy(busy):
            result = tracer.flush()
            states = [record.state for record in tracer.records()]
        assert (result.completed, result.still_due) == (1, 1)
        assert result.reason == "streams are busy"
        assert states == ["pending", "complete"]
        assert tracer.flush(wait=True).completed == 1
        assert [record.state for record in tracer.records()] == ["complete", "complete"]


def test_requests_inside_a_capture_say_what_is_still_due(simulated):
    """records, problems and flush in a capture do no device work and break nothing."""
    x = torch.ones(4)
    with lazytrace.trace(flush_at="exit") as tracer:
        launch(x, value=5)

        def body():
            launch(x, value=6)
            with simulated.simulation.strict():
                result = lazytrace.flush(wait=True)
                assert (result.completed, result.still_due, result.reason) == (0, 1, "capturing")
                assert [record.state for record in lazytrace.records()] == ["pending", "pending"]
                assert lazytrace.problems() == []

        graph = case_kernels.captured(body)
        assert simulated.simulation.nodes(graph) == 1
        graph.replay()
        assert [record.state for record in tracer.records()] == ["complete", "complete"]


# Bounds


def test_max_records_keeps_the_latest_runs_and_counts_the_rest(simulated, tmp_path):
    """Memory forgets the oldest runs; the file has them all."""
    x = torch.ones(2)
    with lazytrace.trace(tmp_path / "t.ndjson", max_records=2) as tracer:
        for value in (5, 6, 7, 8):
            launch(x, value=value)
        kept = [record.args["value"].value for record in tracer.records()]
        messages = [problem.message for problem in tracer.problems()]
    assert kept == [7, 8]
    assert messages == ["2 dropped: max_records"]
    assert [r.args["value"].value for r in lazytrace.read(tracer.path).launches] == [5, 6, 7, 8]


def test_max_pending_drops_values_and_keeps_descriptions(simulated):
    """The launches over the bound are described, say why they have no values, and are counted."""
    x = torch.ones(2)
    with lazytrace.trace(max_pending=2) as tracer:
        graph = case_kernels.captured(lambda: [launch(x, value=value) for value in (5, 6, 7)])
        graph.replay()
        torch.cuda.synchronize()
        launches = tracer.records()
        assert [problem.message for problem in tracer.problems()] == [
            "1 dropped: max_pending: values"
        ]
    assert [record.args["x"].state for record in launches] == [
        "materialized",
        "materialized",
        "skipped",
    ]
    assert launches[2].args["x"].reason == "max_pending"
    assert launches[2].args["value"].value == 7


def test_max_pending_is_free_again_after_a_flush(simulated):
    """Values that were read, and captures that failed or died, no longer count."""
    x, graph, stream = torch.ones(2), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with lazytrace.trace(max_pending=2) as tracer:
        for value in range(5, 15):
            with pytest.raises(RuntimeError, match="capturing"), torch.cuda.stream(stream):
                fail_a_capture(graph, lambda value=value: launch(x, value=value))
        for value in range(15, 25):
            case_kernels.captured(lambda value=value: launch(x, value=value))
        for value in range(25, 35):
            replayed = case_kernels.captured(lambda value=value: launch(x, value=value))
            replayed.replay()
            torch.cuda.synchronize()
        arguments = [record.args["x"] for record in tracer.records()]
    assert [argument.reason for argument in arguments] == ["capture_failed"] * 10 + [
        "never_replayed"
    ] * 10 + [None] * 10
    assert {argument.state for argument in arguments[20:]} == {"materialized"}


def fail_a_capture(graph, body):
    """A capture that a synchronisation invalidates, without torch.cuda.graph around it."""
    graph.capture_begin()
    body()
    try:
        torch.cuda.synchronize()
    finally:
        with pytest.raises(RuntimeError, match="previous error"):
            graph.capture_end()


def test_max_file_bytes_bounds_the_file(simulated, tmp_path):
    """The file stays readable and within the bound, and says what it lacks."""
    x = torch.ones(2)
    with lazytrace.trace(tmp_path / "t.ndjson", max_file_bytes=16_000) as tracer:
        for value in range(100):
            launch(x, value=value + 5)
        assert len(tracer.records()) == 100
    assert tracer.path.stat().st_size <= 16_000
    trace = lazytrace.read(tracer.path)
    assert 0 < len(trace.launches) < 100
    lost = sum(n for reason, n in trace.coverage.dropped.items() if reason.endswith(":launch"))
    assert len(trace.launches) + lost == 100


# Where the trace goes


def test_a_directory_gets_one_file_per_process(simulated, tmp_path):
    """HOST.PID.ndjson, then HOST.PID.2.ndjson; the session line is there at once."""
    paths = []
    for _ in range(2):
        with lazytrace.trace(tmp_path) as tracer:
            assert len(read_lines(tracer.path)) == 1
            assert '"type":"session"' in read_lines(tracer.path)[0]
        paths.append(tracer.path)
    assert paths[0].parent == tmp_path
    assert paths[1].name == paths[0].name.removesuffix(".ndjson") + ".2.ndjson"


def test_stacks_keep_the_call_site(simulated):
    """The frame that launched is in the record, and two lines are two runs."""
    x = torch.ones(2)
    with lazytrace.trace(stacks=True) as tracer:
        launch(x)
        launch(x)
        records = tracer.records()
    assert [record.count for record in records] == [1, 1]
    functions = [frame.function for frame in records[0].call_site]
    assert "launch" in functions
    assert test_stacks_keep_the_call_site.__name__ in functions
    assert not any("/triton/" in frame.file for frame in records[0].call_site)


def test_no_call_site_without_stacks(simulated):
    """The default keeps none."""
    with lazytrace.trace() as tracer:
        launch(torch.ones(2))
        assert tracer.records()[0].call_site is None


def test_ir_keeps_the_stages_of_the_compiler(simulated):
    """TTIR and PTX of each kernel, and none by default."""
    x = torch.ones(2)
    with lazytrace.trace(ir=True) as tracer:
        launch(x)
        ir = tracer.records()[0].kernel.ir
    assert {"ttir", "ttgir", "ptx"} <= set(ir)
    assert "tt.func" in ir["ttir"]
    assert ".entry" in ir["ptx"]
    with lazytrace.trace() as tracer:
        launch(x)
        assert tracer.records()[0].kernel.ir is None


def test_leaving_the_simulator_disables_the_tracer_enabled_inside_it():
    """What was pending is read while the simulator is still there."""
    with simulate():
        tracer = lazytrace.enable()
        x = torch.full((2,), 3.0)
        launch(x)
    assert not tracer.enabled
    assert tracer.records()[0].args["x"].values.max == 3.0


@pytest.mark.parametrize("module", ["import lazytrace", "from lazytrace import read, records"])
def test_importing_has_no_effect_and_needs_no_torch(module):
    """The package, and reading a trace, import neither torch nor triton."""
    code = f"import sys; {module}; print(sorted({{'torch', 'triton'}} & set(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert shown.strip() == "[]"


def test_without_torch_enable_says_what_to_install(monkeypatch):
    """MissingDependencyError is an ImportError that names the extra."""
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(lazytrace.MissingDependencyError, match=r"lazytrace\[torch\]") as caught:
        lazytrace.enable()
    assert isinstance(caught.value, ImportError)
