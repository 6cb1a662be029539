"""Reads a trace file, without torch and triton."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import attrs

from lazytrace.codec import decode, is_torn
from lazytrace.errors import NewerSchemaError, NotATraceError, TraceError
from lazytrace.join import Joiner, select
from lazytrace.problems import Problem
from lazytrace.records import Coverage, KernelInfo, LaunchRecord, Session

_MAX_FIRST_LINE = 1 << 26
_NAMED_FILES = 10


@attrs.frozen
class Trace:
    """What one traced process left behind.

    ``launches`` are runs, oldest first. ``complete``: the tracer was closed; otherwise the
    process was killed or still runs.
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
        problems=tuple(joiner.problems),
        coverage=coverage,
        complete=joiner.end is not None,
    )
