"""Reads a trace file, without torch and triton."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import attrs

from lazytrace._trace.codec import decode, is_torn
from lazytrace._trace.join import Joiner, select
from lazytrace.errors import NewerSchemaError, NotATraceError, TraceError
from lazytrace.lines import BLOBS_SUFFIX
from lazytrace.problems import Problem, in_launch_order
from lazytrace.records import Blob, Coverage, KernelInfo, LaunchRecord, Session, TensorArg

_MAX_FIRST_LINE = 1 << 26
_NAMED_FILES = 10


@attrs.frozen
class Trace:
    """What one traced process left behind.

    ``launches`` are runs, oldest first, ``problems`` by launch. ``complete``: the tracer was
    closed; otherwise the process was killed or still runs.
    """

    path: str
    session: Session
    kernels: tuple[KernelInfo, ...]
    launches: tuple[LaunchRecord, ...]
    problems: tuple[Problem, ...]
    coverage: Coverage
    complete: bool

    def records(
        self,
        kernel: str | Iterable[str] | None = None,
        *,
        captured: bool | None = None,
        expand: bool = False,
    ) -> list[LaunchRecord]:
        """The launches, filtered as ``lazytrace.records()`` does."""
        return select(self.launches, kernel, captured=captured, expand=expand)

    def blob(self, of: TensorArg | Blob) -> bytes:
        """The bytes that ``save_tensors`` kept of a tensor argument when its values were read.

        Elements row-major from the first on, in the byte order of the traced machine; where
        ``data.cut`` they are not all. ``data_after`` may be given in the argument's place. Raises
        TraceError where none were kept, and where the file in the trace's folder is missing or
        has other bytes.
        """
        blob = of.data if isinstance(of, TensorArg) else of
        if blob is None:
            reason = getattr(of, "data_reason", None) or "save_tensors was not asked for"
            raise TraceError(self.path, f"keeps no data of this argument: {reason}")
        place = blob.file
        if place is None:
            raise TraceError(self.path, "names its data by a hash that is none")
        file = os.path.join(self.path + BLOBS_SUFFIX, *place)
        try:
            with open(file, "rb") as stream:
                data = stream.read(blob.nbytes + 1)
        except OSError as error:
            raise TraceError(file, f"cannot be read: {error.strerror}") from error
        if not blob.is_of(data):
            raise TraceError(file, "has other bytes than the trace has kept")
        return data


def read(path: str | os.PathLike[str]) -> Trace:
    """The trace in a file, or in a directory that holds just one ``.ndjson`` file.

    A torn line, such as a killed process or a full disk leaves, is counted in
    ``coverage.dropped["torn"]``. Raises NotATraceError if the file is none of ours,
    NewerSchemaError if a newer lazytrace wrote it, and TraceError (caused by the OSError, and not
    itself one) if it cannot be read or is damaged elsewhere than at a line's end.
    """
    file = _only_file(Path(path))
    try:
        with _opened(file) as stream:
            return _read(str(file), stream)
    except OSError as error:
        raise TraceError(str(file), f"cannot be read: {error.strerror}") from error


def _opened(file: Path) -> BinaryIO:
    try:
        return open(file, "rb")
    except ValueError as error:  # a NUL in the path
        raise TraceError(str(file), f"cannot be read: {error}") from error


def _only_file(path: Path) -> Path:
    if not os.path.isdir(path):  # Path.is_dir() raises for some paths that cannot exist
        return path
    files = sorted(path.glob("*.ndjson"))
    if len(files) == 1:
        return files[0]
    if not files:
        raise TraceError(str(path), "is a directory without any .ndjson file")
    names = ", ".join(file.name for file in files[:_NAMED_FILES])
    more = ", ..." if len(files) > _NAMED_FILES else ""
    raise TraceError(str(path), f"holds {len(files)} traces, read one of them: {names}{more}")


def _read(path: str, stream: BinaryIO) -> Trace:
    joiner, torn = Joiner(), 0
    for number, raw in _numbered(stream):
        if joiner.session is None and not raw.startswith(b"{"):
            break
        try:
            line = decode(raw, path, number)
        except (NotATraceError, NewerSchemaError):
            raise
        except TraceError as error:
            if is_torn(raw):
                torn += 1
                continue
            if joiner.session is None:
                raise NotATraceError(path, f"is not a lazytrace trace: {error}") from error
            raise
        if joiner.session is None and not isinstance(line, Session):
            break
        if line is not None:
            joiner.add(line)
    return _trace(path, joiner, torn)


def _numbered(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that hold anything; a crash of the machine can leave zeros.

    A foreign file may be one line of any length, so the first is read to a limit.
    """
    first = stream.readline(_MAX_FIRST_LINE)
    for number, raw in enumerate(chain([first], stream), start=1):
        if raw.strip(b"\0 \r\n"):
            yield number, raw


def _trace(path: str, joiner: Joiner, torn: int) -> Trace:
    session = joiner.session
    if session is None:
        raise NotATraceError(path, "is not a lazytrace trace: it begins with no session line")
    launches = joiner.records()
    coverage = joiner.coverage(launches)
    if torn:
        coverage = attrs.evolve(coverage, dropped={**coverage.dropped, "torn": torn})
    return Trace(
        path=path,
        session=session,
        kernels=tuple(joiner.kernels),
        launches=tuple(launches),
        problems=tuple(in_launch_order(joiner.problems)),
        coverage=coverage,
        complete=joiner.end is not None,
    )
