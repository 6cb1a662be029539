"""Where the lines of a running trace go: into bounded memory, or into a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs

from lazytrace._trace.join import Joiner
from lazytrace.lines import ArgsLine, CaptureLine, LaunchLine, Line, ProblemLine, ValuesLine
from lazytrace.problems import Problem
from lazytrace.records import Coverage, LaunchRecord

_LEAST_IDLE = 1000


class Sink(Protocol):
    """Takes the lines of a trace in order; none of its methods raises.

    A kernel's, a set of arguments' and a capture's line come before the launches that name them,
    a launch's line before its values. The caller serialises the calls.
    """

    def write(self, line: Line) -> None:
        """Take a line."""

    def flush(self) -> None:
        """Bring all lines taken to where they last."""

    def close(self) -> None:
        """Flush, and take no more lines."""


@attrs.define
class _Shared:
    """Which lines of a kind the retained launches use, and the latest ones that none does.

    Those are kept too, ``limit`` of them, because a later launch may still name them.
    """

    limit: int
    forget: Callable[[int], None]
    _uses: Counter[int] = attrs.field(factory=Counter)
    _idle: dict[int, None] = attrs.field(factory=dict)

    def seen(self, number: int) -> None:
        if not self._uses[number]:
            self._idle[number] = None
            self._trim()

    def use(self, number: int) -> None:
        self._uses[number] += 1
        self._idle.pop(number, None)

    def release(self, number: int) -> None:
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._uses[number]
            self._idle[number] = None
            self._trim()

    def _trim(self) -> None:
        while len(self._idle) > self.limit:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            self.forget(oldest)


@attrs.define(eq=False)
class MemorySink:
    """Keeps the last ``max_records`` runs, what they refer to, and their readings.

    ``dropped["max_records"]`` counts the launches of evicted runs, ``dropped["max_problems"]``
    the problems after the first ``max_records``.
    """

    max_records: int
    dropped: Counter[str] = attrs.field(factory=Counter)
    _joiner: Joiner = attrs.field(factory=Joiner)
    _launches: dict[int, LaunchLine] = attrs.field(factory=dict)
    _problem_lines: int = 0
    _args: _Shared = attrs.field(init=False)
    _captures: _Shared = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        limit = max(self.max_records, _LEAST_IDLE)
        self._args = _Shared(limit, self._joiner.forget_args)
        self._captures = _Shared(limit, self._joiner.forget_capture)

    @property
    def problems(self) -> list[Problem]:
        """The problems in the order in which they came."""
        return self._joiner.problems

    def write(self, line: Line) -> None:
        """Take a line; the oldest run goes where it is one too many."""
        if isinstance(line, LaunchLine):
            self._write_launch(line)
        elif isinstance(line, ValuesLine):
            self._write_values(line)
        elif isinstance(line, ProblemLine):
            self._write_problem(line)
        else:
            self._joiner.add(line)
            if isinstance(line, ArgsLine):
                self._args.seen(line.id)
            elif isinstance(line, CaptureLine):
                self._captures.seen(line.id)

    def _write_launch(self, line: LaunchLine) -> None:
        earlier = self._launches.get(line.id)
        self._args.use(line.args)
        if line.capture is not None:
            self._captures.use(line.capture)
        if earlier is not None:
            self._release(earlier)
        self._launches[line.id] = line
        self._joiner.add(line)
        if len(self._launches) > self.max_records:
            oldest = self._launches.pop(next(iter(self._launches)))
            self._joiner.forget_launch(oldest.id)
            self._release(oldest)
            self.dropped["max_records"] += oldest.count

    def _write_problem(self, line: ProblemLine) -> None:
        if self._problem_lines >= self.max_records:
            self.dropped["max_problems"] += 1
            return
        self._problem_lines += 1
        self._joiner.add(line)

    def _release(self, line: LaunchLine) -> None:
        self._args.release(line.args)
        if line.capture is not None:
            self._captures.release(line.capture)

    def _write_values(self, line: ValuesLine) -> None:
        retained = tuple(number for number in line.launches if number in self._launches)
        if retained:
            self._joiner.add(attrs.evolve(line, launches=retained))

    def flush(self) -> None:
        """Nothing: memory lasts as long as the sink."""

    def close(self) -> None:
        """Nothing: the sink still answers."""

    def records(
        self,
        kernel: str | Iterable[str] | None = None,
        *,
        captured: bool | None = None,
        expand: bool = False,
    ) -> list[LaunchRecord]:
        """The retained launches, oldest first, filtered as ``lazytrace.records()`` does."""
        return self._joiner.records(kernel, captured=captured, expand=expand)

    def coverage(self) -> Coverage:
        """How much of what is retained was looked at, and what was dropped."""
        known = self._joiner.coverage()
        dropped: Mapping[str, int] = {**known.dropped, **self.dropped}
        return attrs.evolve(known, dropped=dropped)
