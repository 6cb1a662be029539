from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from trace_lines import args, kernel, launch, sample_trace, session

from lazytrace._trace.codec import encode
from lazytrace._trace.join import Joiner
from lazytrace.errors import NewerSchemaError, NotATraceError, TraceError
from lazytrace.lines import SCHEMA_VERSION, Line
from lazytrace.reader import read
from lazytrace.records import LaunchRecord


def written(path: Path, *lines: Line, tail: bytes = b"") -> Path:
    path.write_bytes(b"".join(map(encode, lines)) + tail)
    return path


def joined(lines: list[Line]) -> list[LaunchRecord]:
    joiner = Joiner()
    for line in lines:
        joiner.add(line)
    return joiner.records()


def test_a_trace_is_read_whole(tmp_path: Path) -> None:
    """Session, kernels, launches, problems and coverage are those of the lines."""
    path = written(tmp_path / "a.ndjson", *sample_trace())
    trace = read(path)
    assert trace.path == str(path)
    assert trace.session == session(rank=2, world_size=8)
    assert [known.name for known in trace.kernels] == ["add_kernel"]
    assert list(trace.launches) == joined(sample_trace())
    assert [record.id for record in trace.launches] == [0, 3, 4]
    assert [problem.message for problem in trace.problems] == ["x holds 2 NaN"]
    assert (trace.coverage.replays_read, trace.coverage.replays_run) == (1, 3)
    assert trace.coverage.dropped == {"max_pending": 2}
    assert trace.complete


def test_records_filters_as_the_tracer_does(tmp_path: Path) -> None:
    """A trace's records() takes kernel, captured and expand."""
    trace = read(written(tmp_path / "a.ndjson", *sample_trace()))
    assert [record.id for record in trace.records(captured=True)] == [3, 4]
    assert [record.id for record in trace.records("add*", captured=False, expand=True)] == [0, 1, 2]
    assert trace.records(["mul*"]) == []


def test_a_trace_cut_at_any_byte_loses_the_cut_line_only(tmp_path: Path) -> None:
    """However short the file, what was written whole is read, and nothing is made up."""
    lines = [line for line in sample_trace() if getattr(line, "args", 0) in (0, 1, args().args)]
    raws = [encode(line) for line in lines]
    whole, first, path = b"".join(raws), len(raws[0]) - 1, tmp_path / "cut.ndjson"
    for cut in range(first):
        path.write_bytes(whole[:cut])
        with pytest.raises(NotATraceError):
            read(path)
    ends = [sum(map(len, raws[: count + 1])) - 1 for count in range(len(raws))]
    expected = [joined(lines[:count]) for count in range(len(lines) + 1)]
    for cut in range(first, len(whole) + 1):
        path.write_bytes(whole[:cut])
        trace = read(path)
        kept = sum(end <= cut for end in ends)
        assert list(trace.launches) == expected[kept]
        assert trace.complete is (kept == len(lines))
        torn = cut not in ends and cut - 1 not in ends
        assert trace.coverage.dropped.get("torn", 0) == torn


def test_a_torn_line_in_the_middle_is_counted(tmp_path: Path) -> None:
    """A line that a full disk cut, followed by good ones, costs only itself."""
    raws = [encode(line) for line in (session(), kernel(), args(), launch(0), launch(1))]
    raws[3] = raws[3][:40] + b"\n"
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"".join(raws))
    trace = read(path)
    assert [record.id for record in trace.launches] == [1]
    assert trace.coverage.dropped == {"torn": 1}


@pytest.mark.parametrize("tail", [b"\n\n", b"\0" * 4096, b"\r\n", b'{"type":"la', b"{"])
def test_an_empty_or_torn_tail_does_no_harm(tmp_path: Path, tail: bytes) -> None:
    """Blank lines, zeros as a crash of the machine leaves them, and a torn line end a trace."""
    trace = read(written(tmp_path / "a.ndjson", *sample_trace()[:5], tail=tail))
    assert [record.id for record in trace.launches] == [0]
    assert not trace.complete


@pytest.mark.parametrize("raw", [b"hello\n", b'{"type":"launch","id":"x"}\n', b"[1]\n", b"5\n"])
def test_a_damaged_line_is_named(tmp_path: Path, raw: bytes) -> None:
    """A whole line that is none of ours raises TraceError with the path and the line's number."""
    path = written(tmp_path / "a.ndjson", session(), kernel(), tail=raw + encode(args()))
    with pytest.raises(TraceError, match=r"a\.ndjson: line 3: ") as caught:
        read(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"\0" * 100,
        b"\x7fELF\x02\x01\x01" + bytes(range(256)),
        b'{"a": 1}\n',
        b"[1, 2]\n",
        b'{"type":"session"}\n',
        b'{"type":"launch","id":1}\n',
        b'{"type":"weather"}\n',
        b'{"traceEvents": []}',
        encode(kernel()),
        "größe\n".encode("latin-1"),
    ],
)
def test_a_foreign_file_is_not_a_trace(tmp_path: Path, raw: bytes) -> None:
    """Empty, binary, other JSON, or a trace without its session: NotATraceError."""
    path = tmp_path / "foreign.ndjson"
    path.write_bytes(raw)
    with pytest.raises(NotATraceError, match=r"foreign\.ndjson: "):
        read(path)


def test_a_newer_trace_is_refused(tmp_path: Path) -> None:
    """A higher schema version raises NewerSchemaError, in the first line or a later one."""
    newer = attrs.evolve(session(), schema_version=SCHEMA_VERSION + 1)
    with pytest.raises(NewerSchemaError, match="upgrade lazytrace"):
        read(written(tmp_path / "a.ndjson", newer))
    with pytest.raises(NewerSchemaError):
        read(written(tmp_path / "b.ndjson", session(), newer))


@pytest.mark.parametrize("name", ["missing.ndjson", "file.ndjson/below", "x\0y", "a" * 300])
def test_a_file_that_cannot_be_opened_is_a_trace_error(tmp_path: Path, name: str) -> None:
    """A path that cannot be read raises TraceError with the system's reason, not OSError."""
    (tmp_path / "file.ndjson").write_bytes(b"")
    with pytest.raises(TraceError, match="cannot be read: ") as caught:
        read(tmp_path / name)
    assert not isinstance(caught.value, OSError)


def test_a_directory_with_one_trace_is_read(tmp_path: Path) -> None:
    """A directory stands for its only .ndjson file."""
    path = written(tmp_path / "node.7.ndjson", *sample_trace())
    (tmp_path / "notes.txt").write_text("x")
    assert read(str(tmp_path)).path == str(path)


def test_a_directory_with_more_or_none_is_refused(tmp_path: Path) -> None:
    """Without exactly one trace the error lists what there is."""
    with pytest.raises(TraceError, match="without any"):
        read(tmp_path)
    for number in range(12):
        written(tmp_path / f"node.{number:02}.ndjson", session())
    with pytest.raises(TraceError, match=r"holds 12 traces.*node\.00\.ndjson, node\.01.*, \.\.\."):
        read(tmp_path)


def test_unknown_line_types_are_skipped(tmp_path: Path) -> None:
    """A line type that a later version of the same schema added is ignored."""
    tail = b'{"type":"weather","sky":"clear"}\n' + encode(launch(0))
    trace = read(written(tmp_path / "a.ndjson", session(), kernel(), args(), tail=tail))
    assert [record.id for record in trace.launches] == [0]
    assert trace.coverage.dropped == {}


def test_reading_needs_neither_torch_nor_triton() -> None:
    """The whole output side imports without them."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None;"
        "import lazytrace.reader, lazytrace._trace.sink, lazytrace._trace.ndjson, lazytrace.table"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
