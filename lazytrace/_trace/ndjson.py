"""Writes a trace to an NDJSON file of its own, and never loses a line silently."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import attrs

from lazytrace._trace.codec import encode, type_name
from lazytrace.errors import InternalError, OutputError
from lazytrace.lines import LaunchLine, Line

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
_MAX_NAMES = 10_000
_VALUES_SHARE = 0.9
_END_BYTES = 4096
_RETRY_BYTES = 1 << 20
_RECENT_RUNS = 1000
# Others refer to these lines, so a failed write keeps them; all else may go.
_REFERRED_TO = frozenset({"session", "kernel", "args", "capture"})


@attrs.frozen
class _Encoded:
    """A line that waits to be written; ``launches`` are those that go if it does."""

    type: str
    data: bytes
    weight: int


@attrs.define(eq=False)
class NDJSONSink:
    """A file that this process alone created and appends whole lines to.

    ``write`` only encodes and queues; ``flush`` writes. Neither raises: the first failure is in
    ``fault``, and ``dropped`` counts what was lost as ``"REASON:TYPE"``, launch lines by the
    launches that they add to the last line of their id. REASON is ``write_failed``,
    ``max_file_bytes``, ``unencodable``, ``closed`` or ``forked`` (a child must open its own file).

    After a failed write the lines that did not get out wait for the next flush, at most 1 MiB of
    them besides the lines that others refer to; a line that was cut stays cut, and the next
    write starts on a new line.

    ``max_file_bytes``, less 4 KiB for the ``end`` line, is for the rest: at 90 % of that values
    are dropped, at all of it descriptions; from the first lost description on no further
    one is written, so that no launch refers to a line that is missing. The session and the
    ``end`` line are written regardless.
    """

    path: Path
    _fd: int
    max_file_bytes: int | None = None
    _pid: int = attrs.field(factory=os.getpid)
    _write_bytes: Callable[[int, memoryview], int] = os.write
    fault: OSError | InternalError | None = None
    dropped: Counter[str] = attrs.field(factory=Counter)
    _queue: list[_Encoded] = attrs.field(factory=list)
    _counts: dict[int, int] = attrs.field(factory=dict)
    _size: int = 0
    _sent: int = 0
    _torn: bool = False
    _full: bool = False
    _flushing: bool = False
    _closed: bool = False

    @classmethod
    def create(cls, path: Path, max_file_bytes: int | None = None) -> NDJSONSink:
        """A sink on a file created now; OSError, FileExistsError included, if it cannot be."""
        return cls(path, os.open(path, _CREATE, 0o666), max_file_bytes)

    def write(self, line: Line) -> None:
        """Queue a line."""
        name = type_name(line)
        weight = self._new_launches(line) if isinstance(line, LaunchLine) else 1
        if os.getpid() != self._pid:
            self.dropped[f"forked:{name}"] += weight
            return
        if self._closed:
            self.dropped[f"closed:{name}"] += weight
            return
        try:
            data = encode(line)
        except InternalError as error:
            self.fault = self.fault or error
            self.dropped[f"unencodable:{name}"] += weight
            return
        if not self._fits(name, len(data)):
            self.dropped[f"max_file_bytes:{name}"] += weight
            return
        self._size += len(data)
        self._queue.append(_Encoded(name, data, weight))

    def _new_launches(self, line: LaunchLine) -> int:
        """How many launches the line has more than the last one of its id, if that was recent."""
        known = self._counts.pop(line.id, 0)
        self._counts[line.id] = line.count
        if len(self._counts) > _RECENT_RUNS:
            del self._counts[next(iter(self._counts))]
        return max(0, line.count - known)

    def _fits(self, name: str, size_bytes: int) -> bool:
        limit = self.max_file_bytes
        if limit is None or name in ("session", "end"):
            return True
        after = self._size + size_bytes
        room = limit - _END_BYTES
        if name == "values":
            return not self._full and after <= room * _VALUES_SHARE
        fits = after <= room
        if name == "problem":
            return fits
        self._full = self._full or not fits
        return not self._full

    def flush(self) -> None:
        """Write what is queued, in one call if the system takes it; a failure is kept in fault."""
        # A signal handler may flush while a flush is writing: its lines go with the next one.
        if self._flushing or not self._queue or os.getpid() != self._pid:
            return
        self._flushing = True
        batch, self._queue = self._queue, []
        separator = b"\n" if self._torn else b""
        self._sent = 0
        try:
            self._write_all(b"".join([separator, *(line.data for line in batch)]))
        except OSError as error:
            self.fault = self.fault or error
        finally:  # a signal handler may have raised out of the write
            self._requeue(batch, self._sent - len(separator))
            self._flushing = False
            if self._closed:
                self._shut()

    def _write_all(self, data: bytes) -> None:
        pending = memoryview(data)
        while self._sent < len(pending):
            written = self._write_bytes(self._fd, pending[self._sent :])
            if not written:
                raise OSError(errno.EIO, "nothing was written")
            self._sent += written
            self._torn = pending[self._sent - 1] != ord("\n")

    def _requeue(self, batch: list[_Encoded], sent: int) -> None:
        """Put what did not get out back to the front of the queue."""
        whole, bytes_whole = 0, 0
        for line in batch:
            if bytes_whole + len(line.data) > sent:
                break
            whole, bytes_whole = whole + 1, bytes_whole + len(line.data)
        self._queue = batch[whole:] + self._queue
        self._size += max(0, sent - bytes_whole)
        if whole < len(batch) and sum(len(line.data) for line in self._queue) > _RETRY_BYTES:
            self._drop(lambda line: line.type not in _REFERRED_TO)

    def _drop(self, choose: Callable[[_Encoded], bool]) -> None:
        for line in filter(choose, self._queue):
            self.dropped[f"write_failed:{line.type}"] += line.weight
            self._size -= len(line.data)
        self._queue = [line for line in self._queue if not choose(line)]

    def close(self) -> None:
        """Flush and close the file; what could not be written is counted as dropped."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        if not self._flushing:  # else the flush that this call interrupted does it
            self._shut()

    def _shut(self) -> None:
        if os.getpid() == self._pid:
            self._drop(lambda _: True)
        try:
            os.close(self._fd)
        except OSError as error:
            self.fault = self.fault or error


def open_trace(
    out: Path, pid: int, host: str, *, child: bool = False, max_file_bytes: int | None = None
) -> NDJSONSink:
    """A sink on a new file: in the directory ``out``, or at ``out`` if that ends in ``.ndjson``.

    A directory is made if only it is missing, and gets ``HOST.PID.ndjson``, or
    ``HOST.PID.2.ndjson`` and so on where that is taken. A path is taken as it is, and must be
    free; a ``child`` process gets ``X.PID.ndjson`` beside ``X.ndjson``. OutputError if no file can
    be created.
    """
    try:
        is_directory = out.is_dir() or out.suffix != ".ndjson"
        if is_directory:
            out.mkdir(exist_ok=True)
            return _first_free(out / f"{_file_name(host)}.{pid}", max_file_bytes)
        if child:
            return _first_free(out.with_name(f"{out.stem}.{pid}"), max_file_bytes)
        return NDJSONSink.create(out, max_file_bytes)
    except (OSError, ValueError) as error:
        raise _output_error(out, error) from error


def _first_free(stem: Path, max_file_bytes: int | None) -> NDJSONSink:
    for number in count(1):
        middle = "" if number == 1 else f".{number}"
        try:
            return NDJSONSink.create(Path(f"{stem}{middle}.ndjson"), max_file_bytes)
        except FileExistsError:
            if number >= _MAX_NAMES:
                raise
    raise AssertionError("count() has no end")


def _file_name(host: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", host).strip(".")[:64] or "host"


def _output_error(out: Path, error: OSError | ValueError) -> OutputError:
    problem, remedy = "cannot be created", "give another path"
    code = error.errno if isinstance(error, OSError) else None
    if isinstance(error, OSError) and error.strerror:
        problem = f"cannot be created: {error.strerror}"
    if code == errno.EEXIST and out.suffix == ".ndjson":
        problem, remedy = "exists already", "name another file, delete it, or give a directory"
    elif code == errno.EEXIST:
        problem = "is a file, and its name does not end in .ndjson"
        remedy = "give a directory or a path that ends in .ndjson"
    elif code == errno.ENOENT:
        problem, remedy = f"the directory {out.parent} does not exist", "create it first"
    elif code in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "give a directory that this user may write to"
    elif code == errno.ENOTDIR:
        problem, remedy = "a part of the path is a file", "give a path below a directory"
    return OutputError(str(out), problem, remedy)
