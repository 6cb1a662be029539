"""Bad input and bad luck: a clear error or a contained fault, and the user's program goes on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import case_kernels
import orjson
import pytest
import torch

import lazytrace
from lazytrace._capture.recorder import Recorder
from lazytrace.testing import simulate

TESTS = Path(__file__).parent


def launch(x, value=7):
    case_kernels.ignore[(1,)](x, x, value)


# enable()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("file/trace.ndjson", "below a directory"),
        ("file/directory", "below a directory"),
        ("file", "does not end in .ndjson"),
        ("missing/deeper/trace.ndjson", "does not exist"),
        ("missing/deeper", "does not exist"),
        ("taken.ndjson", "exists already"),
    ],
)
@pytest.mark.core
def test_an_output_that_cannot_be_created_is_an_error_with_a_remedy(
    simulated, tmp_path, place, message
):
    """OutputError is an OSError that names the path; nothing is enabled, nothing is changed."""
    (tmp_path / "file").write_text("somebody's\n")
    (tmp_path / "taken.ndjson").write_text("somebody's\n")
    with pytest.raises(lazytrace.OutputError, match=message) as caught:
        lazytrace.enable(tmp_path / place)
    assert isinstance(caught.value, OSError)
    assert str(tmp_path / place) in str(caught.value)
    assert (tmp_path / "taken.ndjson").read_text() == "somebody's\n"
    launch(torch.ones(2))
    with lazytrace.trace() as tracer:
        launch(torch.ones(2))
    assert len(tracer.records()) == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("values", "sometimes"),
        ("values", None),
        ("flush_at", "never"),
        ("on_problem", "ignore"),
        ("eager_samples", -1),
        ("eager_samples", 1.5),
        ("eager_samples", True),
        ("max_read_bytes", -1),
        ("max_read_bytes", None),
        ("max_pending", 0),
        ("max_records", 0),
        ("max_file_bytes", 0),
        ("save_tensors", -1),
        ("stacks", 1),
        ("ir", "yes"),
        ("trial_values", None),
        ("kernels", 5),
        ("kernels", []),
        ("exclude", [None]),
        ("out", 5),
        ("out", ""),
        ("out", b"bytes"),
    ],
)
@pytest.mark.core
def test_a_bad_option_is_named_with_what_is_allowed(simulated, option, value):
    """OptionError is a ValueError that carries the option and the value; nothing is enabled."""
    with pytest.raises(lazytrace.OptionError, match=f"^{option}=.*expected ") as caught:
        lazytrace.enable(**{option: value})
    assert isinstance(caught.value, ValueError)
    assert (caught.value.option, caught.value.value) == (option, value)
    with pytest.raises(lazytrace.NotEnabledError):
        lazytrace.records()


@pytest.mark.core
def test_an_unknown_option_is_an_error(simulated):
    """trace() names what it does not know; enable() is an ordinary signature."""
    with pytest.raises(lazytrace.OptionError, match="flush"), lazytrace.trace(flush="sync"):
        pass
    with pytest.raises(TypeError, match="flush"):
        lazytrace.enable(flush="sync")


@pytest.mark.core
def test_a_failed_enable_leaves_no_file(simulated, tmp_path):
    """A bad option is found before anything is created."""
    with pytest.raises(lazytrace.OptionError):
        lazytrace.enable(tmp_path / "t.ndjson", values="sometimes")
    assert list(tmp_path.iterdir()) == []


# read()


@pytest.fixture
def trace_file(simulated, tmp_path):
    """A complete trace of three runs, and a capture that was replayed."""
    x = torch.ones(2)
    with lazytrace.trace(tmp_path / "t.ndjson") as tracer:
        for value in (5, 6, 7):
            launch(x, value)
        graph = case_kernels.captured(lambda: launch(x, 8))
        graph.replay()
        torch.cuda.synchronize()
    return tracer.path


@pytest.mark.core
def test_a_trace_cut_at_any_byte_keeps_its_whole_lines(trace_file, tmp_path):
    """Whatever a kill or a full disk left: launches of whole lines are all there."""
    data = trace_file.read_bytes()
    first = data.index(b"\n") + 1
    for end in [*range(first, len(data), 97), len(data) - 1]:
        cut = tmp_path / "cut.ndjson"
        cut.write_bytes(data[:end])
        trace = lazytrace.read(cut)
        whole = [orjson.loads(line) for line in data[:end].split(b"\n")[:-1]]
        kernels = {line["id"] for line in whole if line["type"] == "kernel"}
        args = {line["id"] for line in whole if line["type"] == "args"}
        known = {
            line["id"]
            for line in whole
            if line["type"] == "launch" and line["kernel"] in kernels and line["args"] in args
        }
        assert {record.id for record in trace.launches} >= known
        assert not trace.complete or end >= len(data) - 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"hello\n",
        b"[1, 2]\n",
        b'{"event_type": "launch"}\n',
        b"\x00\xff\x1f\x8b",
        b"{",
    ],
    ids=repr,
)
@pytest.mark.core
def test_a_foreign_file_is_no_trace(tmp_path, content):
    """NotATraceError names the file."""
    path = tmp_path / "foreign.ndjson"
    path.write_bytes(content)
    with pytest.raises(lazytrace.NotATraceError, match=r"foreign\.ndjson") as caught:
        lazytrace.read(path)
    assert isinstance(caught.value, lazytrace.TraceError)


@pytest.mark.core
def test_a_newer_trace_is_refused(trace_file, tmp_path):
    """A schema version that this lazytrace does not know."""
    newer = tmp_path / "newer.ndjson"
    newer.write_bytes(
        trace_file.read_bytes().replace(b'"schema_version":1', b'"schema_version":2', 1)
    )
    with pytest.raises(lazytrace.NewerSchemaError, match=r"newer\.ndjson"):
        lazytrace.read(newer)


@pytest.mark.core
def test_a_missing_file_is_a_trace_error(tmp_path):
    """Not an OSError of its own: one kind of error for whoever reads traces."""
    with pytest.raises(lazytrace.TraceError, match="No such file"):
        lazytrace.read(tmp_path / "missing.ndjson")


@pytest.mark.core
def test_a_damaged_line_in_the_middle_is_an_error_or_counted(trace_file, tmp_path):
    """Damage is never silent."""
    lines = trace_file.read_bytes().splitlines(True)
    lines[2] = lines[2][: len(lines[2]) // 2] + b"\n"
    damaged = tmp_path / "damaged.ndjson"
    damaged.write_bytes(b"".join(lines))
    try:
        trace = lazytrace.read(damaged)
    except lazytrace.TraceError:
        return
    assert sum(trace.coverage.dropped.values()) > 0


# Faults of ours


@pytest.mark.core
def test_a_hook_that_raises_is_contained(simulated, tmp_path, monkeypatch, caplog):
    """The user's launches run, the fault is logged once and counted, in memory and in the file."""
    recorded = Recorder.launched

    def faulty(self, kernel, grid, stream, args, *rest):
        if args[2] == 8:
            raise ZeroDivisionError("ours")
        return recorded(self, kernel, grid, stream, args, *rest)

    monkeypatch.setattr(Recorder, "launched", faulty)
    x = torch.ones(2)
    with (
        caplog.at_level(logging.ERROR, logger="lazytrace"),
        lazytrace.trace(tmp_path / "t.ndjson") as tracer,
    ):
        before = simulated.simulation.launches
        for value in (7, 8, 8, 8, 9):
            launch(x, value)
        assert simulated.simulation.launches == before + 5
        (problem,) = tracer.problems()
    assert [record.args["value"].value for record in tracer.records()] == [7, 9]
    assert problem.kind == "tracer_error"
    assert problem.message.startswith("3 contained in the launch hook")
    assert "ZeroDivisionError: ours" in problem.message
    assert len(caplog.records) == 1
    assert lazytrace.read(tracer.path).problems == (problem,)


@pytest.mark.core
def test_keyboard_interrupt_is_not_swallowed(simulated, monkeypatch):
    """Containment holds back exceptions, not what ends the program."""

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "launched", interrupted)
    with lazytrace.trace(), pytest.raises(KeyboardInterrupt):
        launch(torch.ones(2))


@pytest.mark.core
def test_a_synchronisation_that_raises_leaves_every_description_in_the_file(simulated, tmp_path):
    """The error goes on unchanged, nothing is read, and what was launched is on disk."""
    x = torch.ones(2)
    capturing, synchronised = threading.Event(), threading.Event()

    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            capturing.set()
            synchronised.wait(60)
            with pytest.raises(RuntimeError, match="previous error"):
                graph.capture_end()

    with lazytrace.trace(tmp_path / "t.ndjson") as tracer:
        for value in range(5, 25):
            launch(x, value)
        thread = threading.Thread(target=capture)
        thread.start()
        assert capturing.wait(60)
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            torch.cuda.synchronize()
        on_disk = lazytrace.read(tracer.path)
        synchronised.set()
        thread.join()
    assert [record.args["value"].value for record in on_disk.launches] == list(range(5, 25))
    assert {record.args["x"].state.value for record in on_disk.launches} <= {"pending", "skipped"}


FULL_DISK = """
import resource, sys
sys.path.insert(0, {tests!r})
import case_kernels, lazytrace, torch
from lazytrace.testing import simulate

with simulate(execute=False):
    x = torch.ones(2)
    tracer = lazytrace.enable({path!r})
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    for value in range(400):
        case_kernels.ignore[(1,)](x, x, value + 5)
        if value % 50 == 0:
            tracer.flush()
    inside = len(tracer.records())
    early = [problem.message for problem in lazytrace.problems()]
    lazytrace.disable()
    late = [problem.message for problem in lazytrace.problems()]
print(inside, any("File too large" in message for message in early))
print(any("write_failed:launch" in message for message in late))
"""


def test_a_full_disk_stops_the_file_and_not_the_program(tmp_path):
    """The program ends well, what was written is readable, the loss is counted."""
    path = tmp_path / "t.ndjson"
    code = FULL_DISK.format(tests=str(TESTS), path=str(path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["400", "True", "True"]
    assert path.stat().st_size <= 20_000
    trace = lazytrace.read(path)
    assert len(trace.launches) > 10
    assert [record.args["value"].value for record in trace.launches] == list(
        range(5, 5 + len(trace.launches))
    )


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import case_kernels, lazytrace, torch
from lazytrace.testing import simulate

with simulate(execute=False):
    x = torch.ones(2)
    lazytrace.enable({path!r})
    case_kernels.ignore_constexpr[(1,)](x, 7)
    graph = case_kernels.captured(
        lambda: [case_kernels.ignore[(1,)](x, x, value) for value in range(5, 50)]
    )
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_its_captured_launches(tmp_path):
    """No launch of a capture that had ended is lost, nor a kernel's first one."""
    path = tmp_path / "t.ndjson"
    code = KILLED.format(tests=str(TESTS), path=str(path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    trace = lazytrace.read(path)
    assert not trace.complete
    assert trace.launches[0].kernel.name == "ignore_constexpr"
    assert [r.args["value"].value for r in trace.records(captured=True)] == list(range(5, 50))


AT_EXIT = """
import sys
sys.path.insert(0, {tests!r})
import case_kernels, lazytrace, torch
from lazytrace.testing import simulate

simulation = simulate()
simulation.__enter__()
x = torch.full((2,), 3.0)
lazytrace.enable({path!r}, flush_at="exit")
case_kernels.ignore[(1,)](x, x, 5)
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("raise ValueError('the user')", 1)],
    ids=["end", "error"],
)
def test_interpreter_exit_reads_what_is_due(tmp_path, ending, code):
    """The last flush is at exit; the exit status is the program's."""
    path = tmp_path / "t.ndjson"
    program = AT_EXIT.format(tests=str(TESTS), path=str(path), ending=ending)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    trace = lazytrace.read(path)
    assert trace.complete
    (record,) = trace.launches
    assert record.args["x"].values.max == 3.0
    assert record.args["x"].observed.point == "at_exit"


@pytest.mark.core
def test_an_enable_in_a_directory_that_is_removed_meanwhile_loses_nothing_else(tmp_path):
    """The file's directory goes; launches and memory go on."""
    x, place = torch.ones(2), tmp_path / "gone"
    place.mkdir()
    with simulate(execute=False), lazytrace.trace(place) as tracer:
        launch(x, 5)
        os.unlink(tracer.path)
        place.rmdir()
        launch(x, 6)
        assert [record.args["value"].value for record in tracer.records()] == [5, 6]
