from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from trace_lines import args, kernel, launch, problem, reading, sample_trace, session

from lazytrace._trace.codec import encode
from lazytrace._trace.ndjson import NDJSONSink, open_trace
from lazytrace.errors import InternalError, OutputError
from lazytrace.lines import EndLine, Line, ValuesLine
from lazytrace.reader import read
from lazytrace.records import ScalarArg

END = EndLine(900, 1, 0)


def bytes_of(*lines: Line) -> bytes:
    return b"".join(map(encode, lines))


def write_all(sink: NDJSONSink, *lines: Line) -> None:
    for line in lines:
        sink.write(line)


def sink_with(path: Path, write_bytes: Callable[[int, memoryview], int]) -> NDJSONSink:
    """A sink on a new file that writes through the given function."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return NDJSONSink(path, os.open(path, flags), write_bytes=write_bytes)


class Disk:
    """Writes at most ``room`` bytes, then fails with ENOSPC until room is made."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, fd: int, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(fd, data[: self.room])
        self.room -= written
        return written


def test_lines_are_written_in_order_at_a_flush(tmp_path: Path) -> None:
    """Nothing is written before a flush, and a flush writes all in the caller's order."""
    sink = open_trace(tmp_path / "a.ndjson", 7, "node")
    write_all(sink, *sample_trace())
    assert sink.path.read_bytes() == b""
    sink.flush()
    assert sink.path.read_bytes() == bytes_of(*sample_trace())
    sink.close()
    assert sink.path.read_bytes() == bytes_of(*sample_trace())
    assert (sink.fault, sink.dropped) == (None, {})


def test_a_flush_is_one_write(tmp_path: Path) -> None:
    """A batch of lines reaches the system as one call, and an empty batch as none."""
    calls = []

    def record(fd: int, data: memoryview) -> int:
        calls.append(len(data))
        return os.write(fd, data)

    sink = sink_with(tmp_path / "a.ndjson", record)
    write_all(sink, *sample_trace())
    sink.flush()
    sink.flush()
    sink.close()
    assert calls == [len(bytes_of(*sample_trace()))]


def test_close_writes_what_is_left_and_later_lines_are_counted(tmp_path: Path) -> None:
    """A closed sink takes no line, and closing twice is once."""
    sink = open_trace(tmp_path / "a.ndjson", 7, "node")
    sink.write(session())
    sink.close()
    sink.close()
    sink.write(launch(0, count=3))
    sink.flush()
    assert sink.path.read_bytes() == bytes_of(session())
    assert sink.dropped == {"closed:launch": 3}


def test_a_partial_write_is_continued(tmp_path: Path) -> None:
    """A system that takes seven bytes at a time gets all of them, once."""
    sink = sink_with(tmp_path / "a.ndjson", lambda fd, data: os.write(fd, data[:7]))
    write_all(sink, *sample_trace())
    sink.close()
    assert sink.path.read_bytes() == bytes_of(*sample_trace())
    assert sink.fault is None


@pytest.mark.parametrize("room", range(0, 1200, 37))
def test_a_disk_full_for_a_while_loses_nothing(tmp_path: Path, room: int) -> None:
    """Wherever the disk filled up, once there is room again every line is in the file."""
    disk = Disk(room)
    sink = sink_with(tmp_path / "a.ndjson", disk.write)
    write_all(sink, *sample_trace()[:6])
    sink.flush()
    sink.flush()
    write_all(sink, *sample_trace()[6:])
    disk.room = 1 << 20
    sink.close()
    whole = [line for line in sink.path.read_bytes().splitlines() if line.endswith(b"}")]
    assert b"\n".join(whole) + b"\n" == bytes_of(*sample_trace())
    trace = read(sink.path)
    assert [record.id for record in trace.launches] == [0, 3, 4]
    assert sink.dropped == {}
    assert (sink.fault is None) == (room >= len(bytes_of(*sample_trace()[:6])))


def test_a_full_disk_loses_what_is_counted(tmp_path: Path) -> None:
    """What never got out is counted by type at the close, and the file stays readable."""
    lines = [session(), kernel(), args(), launch(0), launch(1, count=4)]
    disk = Disk(len(bytes_of(*lines[:4])) + 30)
    sink = sink_with(tmp_path / "a.ndjson", disk.write)
    write_all(sink, *lines, problem())
    sink.close()
    assert isinstance(sink.fault, OSError)
    assert sink.fault.errno == errno.ENOSPC
    assert sink.dropped == {"write_failed:launch": 4, "write_failed:problem": 1}
    assert [record.id for record in read(sink.path).launches] == [0]
    assert read(sink.path).coverage.dropped == {"torn": 1}


def test_a_disk_that_stays_full_costs_bounded_memory(tmp_path: Path) -> None:
    """Launches and values wait up to a bound; what launches refer to waits beyond it."""
    disk = Disk(0)
    sink = sink_with(tmp_path / "a.ndjson", disk.write)
    write_all(sink, session(), kernel(), args())
    for number in range(12_000):
        sink.write(launch(number))
        if number % 1000 == 0:
            sink.flush()
    assert sink.dropped["write_failed:launch"] > 4000
    disk.room = 1 << 30
    sink.close()
    trace = read(sink.path)
    assert len(trace.launches) + sink.dropped["write_failed:launch"] == 12_000
    assert trace.coverage.dropped == {}


def test_a_file_size_limit_of_the_system_is_survived(tmp_path: Path) -> None:
    """Under RLIMIT_FSIZE a process goes on, counts its loss, and leaves a readable file."""
    code = f"""
        import resource, sys
        from pathlib import Path
        from lazytrace._trace.ndjson import open_trace
        from trace_lines import *
        sink = open_trace(Path({str(tmp_path / "a.ndjson")!r}), 7, "node")
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        for line in (session(), kernel(), args()):
            sink.write(line)
        for number in range(200):
            sink.write(launch(number))
            sink.flush()
        sink.close()
        print(sink.fault.errno, sink.dropped["write_failed:launch"])
    """
    paths = f"{Path(__file__).parent}:{Path(__file__).parents[1]}"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    code_number, lost = map(int, done.stdout.split())
    assert code_number == errno.EFBIG
    trace = read(tmp_path / "a.ndjson")
    assert len(trace.launches) + lost == 200
    assert 50 < len(trace.launches) < 200


def test_a_forked_child_never_writes_to_the_file(tmp_path: Path) -> None:
    """Lines that the parent had queued, and the child's own, are left to the parent."""
    code = f"""
        import os
        from pathlib import Path
        from lazytrace._trace.ndjson import open_trace
        from trace_lines import *
        sink = open_trace(Path({str(tmp_path / "a.ndjson")!r}), os.getpid(), "node")
        for line in (session(), kernel(), args()):
            sink.write(line)
        child = os.fork()
        if not child:
            sink.write(launch(5))
            sink.flush()
            sink.close()
            os._exit(0 if sink.dropped == {{"forked:launch": 1}} else 1)
        assert os.waitpid(child, 0)[1] == 0
        sink.write(launch(0))
        sink.close()
        assert not sink.dropped and sink.fault is None
    """
    paths = f"{Path(__file__).parent}:{Path(__file__).parents[1]}"
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    expected = bytes_of(session(), kernel(), args(), launch(0))
    assert (tmp_path / "a.ndjson").read_bytes() == expected


def test_a_line_that_cannot_be_encoded_costs_only_itself(tmp_path: Path) -> None:
    """A fault of ours in one line is kept and counted, and the others are written."""
    sink = open_trace(tmp_path / "a.ndjson", 7, "node")
    write_all(sink, session(), args(x=ScalarArg("object", object())), kernel())
    sink.close()
    assert isinstance(sink.fault, InternalError)
    assert sink.dropped == {"unencodable:args": 1}
    assert sink.path.read_bytes() == bytes_of(session(), kernel())


def test_a_flush_within_a_flush_leaves_whole_lines(tmp_path: Path) -> None:
    """A signal handler that writes, flushes and closes during a write mixes no lines."""
    calls = []

    def interrupted(fd: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            sink.write(launch(1))
            sink.flush()
            sink.close()
        return os.write(fd, data[:50])

    sink = sink_with(tmp_path / "a.ndjson", interrupted)
    write_all(sink, session(), kernel(), args(), launch(0))
    sink.flush()
    written = bytes_of(session(), kernel(), args(), launch(0))
    assert sink.path.read_bytes() == written
    assert sink.dropped == {"write_failed:launch": 1}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(sink._fd)


def test_a_handler_that_raises_during_a_write_loses_nothing(tmp_path: Path) -> None:
    """After KeyboardInterrupt in the middle of a batch the rest goes with the next flush."""
    calls = []

    def interrupted(fd: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return os.write(fd, data[:200])

    sink = sink_with(tmp_path / "a.ndjson", interrupted)
    write_all(sink, *sample_trace())
    with pytest.raises(KeyboardInterrupt):
        sink.flush()
    sink.close()
    whole = [line for line in sink.path.read_bytes().splitlines() if line.endswith(b"}")]
    assert b"\n".join(whole) + b"\n" == bytes_of(*sample_trace())


@pytest.mark.parametrize("limit", [1, 5_000, 20_000, 100_000])
def test_the_file_stays_within_max_file_bytes(tmp_path: Path, limit: int) -> None:
    """Values go first, then descriptions; the end is there; no launch lacks its lines."""
    sink = open_trace(tmp_path / "a.ndjson", 7, "node", max_file_bytes=limit)
    sink.write(session())
    for number in range(1000):
        write_all(sink, kernel(number, source="s" * (number % 300)), args(number))
        sink.write(launch(number, kernel=number, args=number))
        sink.write(ValuesLine((number,), {"x": reading()}))
        sink.write(problem(launch=number))
        sink.flush()
    sink.write(END)
    sink.close()
    assert sink.fault is None
    assert sink.path.stat().st_size <= max(limit, len(bytes_of(session(), END)))
    trace = read(sink.path)
    assert trace.complete
    assert "incomplete" not in trace.coverage.dropped
    assert len(trace.launches) + sink.dropped["max_file_bytes:launch"] == 1000
    if limit == 100_000:
        first_lost = 1000 - sink.dropped["max_file_bytes:values"]
        assert 0 < first_lost < len(trace.launches)


def test_values_are_dropped_before_descriptions(tmp_path: Path) -> None:
    """From 90 % on a values line is refused where a launch line is still taken."""
    sink = open_trace(tmp_path / "a.ndjson", 7, "node", max_file_bytes=50_000)
    write_all(sink, session(), kernel(source="s" * 41_000), args())
    write_all(sink, launch(0), ValuesLine((0,), {"x": reading()}), launch(1, count=2))
    assert sink.dropped == {"max_file_bytes:values": 1}
    write_all(sink, kernel(2, source="s" * 9000), launch(2), problem())
    assert sink.dropped["max_file_bytes:kernel"] == 1
    assert sink.dropped["max_file_bytes:launch"] == 1
    sink.close()
    assert [record.id for record in read(sink.path).launches] == [0, 1]
    assert len(read(sink.path).problems) == 1


def test_a_directory_gets_one_file_per_process(tmp_path: Path) -> None:
    """The directory is made, and a taken name is numbered, never opened again."""
    out = tmp_path / "traces"
    names = []
    for _ in range(3):
        sink = open_trace(out, 42, "node-1.example")
        sink.write(session())
        sink.close()
        names.append(sink.path.name)
    assert names == [f"node-1.example.42{middle}.ndjson" for middle in ("", ".2", ".3")]
    assert all((out / name).read_bytes() == bytes_of(session()) for name in names)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("../../etc/x", "_.._etc_x"),
        ("a b\n\x1b", "a_b_"),
        ("", "host"),
        ("...", "host"),
        ("größe", "gr_e"),
        ("h" * 300, "h" * 64),
    ],
)
def test_a_host_name_is_made_safe(tmp_path: Path, host: str, name: str) -> None:
    """Whatever the host is called, the file lies in the directory under a plain name."""
    sink = open_trace(tmp_path, 1, host)
    sink.close()
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.1.ndjson"]


def test_a_path_is_exclusive(tmp_path: Path) -> None:
    """An existing file is neither appended to nor truncated, and the error says what to do."""
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"precious")
    with pytest.raises(OutputError, match=r"exists already; name another file, delete it") as error:
        open_trace(path, 7, "node")
    assert error.value.path == str(path)
    assert path.read_bytes() == b"precious"


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """A dangling link at the path does not make a file elsewhere."""
    (tmp_path / "a.ndjson").symlink_to(tmp_path / "target")
    (tmp_path / "node.7.ndjson").symlink_to(tmp_path / "target")
    with pytest.raises(OutputError, match="exists already"):
        open_trace(tmp_path / "a.ndjson", 7, "node")
    sink = open_trace(tmp_path, 7, "node")
    sink.close()
    assert sink.path.name == "node.7.2.ndjson"
    assert not (tmp_path / "target").exists()


def test_a_child_has_a_file_beside_its_parent_s(tmp_path: Path) -> None:
    """With out=X.ndjson children write X.PID.ndjson, numbered where that is taken."""
    parent = open_trace(tmp_path / "x.ndjson", 1, "node")
    first = open_trace(tmp_path / "x.ndjson", 2, "node", child=True)
    second = open_trace(tmp_path / "x.ndjson", 2, "node", child=True)
    for sink in (parent, first, second):
        sink.close()
    names = ["x.ndjson", "x.2.ndjson", "x.2.2.ndjson"]
    assert [sink.path.name for sink in (parent, first, second)] == names


def test_the_users_umask_rules(tmp_path: Path) -> None:
    """The file's mode is what the process's umask leaves."""
    before = os.umask(0o027)
    try:
        sink = open_trace(tmp_path, 1, "node")
    finally:
        os.umask(before)
    sink.close()
    assert sink.path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("missing/traces", r"the directory .*missing does not exist; create it first"),
        ("missing/a.ndjson", r"the directory .*missing does not exist; create it first"),
        ("file", r"is a file, and its name does not end in \.ndjson; give a directory"),
        ("file/traces", r"a part of the path is a file; give a path below a directory"),
        ("file/a.ndjson", r"a part of the path is a file; give a path below a directory"),
        ("b" * 300 + ".ndjson", "cannot be created: File name too long"),
        ("nul\0.ndjson", "cannot be created"),
        ("lone\ud800.ndjson", "cannot be created"),
    ],
)
def test_a_path_that_cannot_be_used_says_why(tmp_path: Path, out: str, message: str) -> None:
    """Each reason why no file can be made is an OutputError with what to do about it."""
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(OutputError, match=message):
        open_trace(tmp_path / out, 7, "node")
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_that_grows_is_lost_once(tmp_path: Path) -> None:
    """Lines of one run that are dropped again and again count each launch once."""
    disk = Disk(0)
    sink = sink_with(tmp_path / "a.ndjson", disk.write)
    write_all(sink, launch(0, count=2), launch(0, count=5), launch(0, count=9), launch(9))
    sink.close()
    assert sink.dropped == {"write_failed:launch": 10}


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere: for a while be nobody."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("out", ["locked", "locked/below", "locked/a.ndjson"])
def test_an_unwritable_directory_says_so(tmp_path: Path, out: str) -> None:
    """A directory without permission to write is an OutputError that says so."""
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        parent.chmod(0o755)
    with (
        unprivileged(),
        pytest.raises(OutputError, match="Permission denied; give a directory that this user"),
    ):
        open_trace(tmp_path / out, 7, "node")
    assert list(locked.iterdir()) == []


def test_a_kernel_keeps_its_source(tmp_path: Path) -> None:
    """Text of many lines is one line of the file."""
    sink = open_trace(tmp_path / "a.ndjson", 7, "node")
    line = kernel(source="@triton.jit\ndef k():\n\tpass\r\n\u2028", ir={"ptx": "a\nb"})
    write_all(sink, session(), line)
    sink.close()
    assert sink.path.read_bytes().count(b"\n") == 2
    assert read(sink.path).kernels == (line.kernel,)
