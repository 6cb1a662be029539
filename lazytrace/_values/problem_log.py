"""Reports problems: once each, in the order in which they are found."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping

import attrs

from lazytrace._capture.pending import Capture
from lazytrace.lines import Line, ProblemLine
from lazytrace.problems import Problem, ProblemKind

_MAX_OF_KIND = 1000


class LazytraceWarning(UserWarning):
    """A problem of the traced program, with ``on_problem="warn"``."""


@attrs.define
class ProblemLog:
    """Writes each distinct problem to the trace, and warns if that was asked for.

    Of each kind the first 1,000 are written; ``dropped`` counts the reports after that.
    """

    write: Callable[[Line], None]
    warn: bool
    dropped: Counter[ProblemKind] = attrs.field(factory=Counter)
    _seen: set[tuple[object, ...]] = attrs.field(factory=set)
    _counts: Counter[ProblemKind] = attrs.field(factory=Counter)

    def report(self, problem: Problem) -> None:
        """One per kind, launch and argument, or per graph where no launch is named."""
        key: tuple[object, ...] = (problem.kind, problem.launch, problem.argument)
        if problem.launch is None:
            key = (*key, problem.graph, problem.message)
        if key in self._seen:
            return
        if self._counts[problem.kind] >= _MAX_OF_KIND:
            self.dropped[problem.kind] += 1
            return
        self._counts[problem.kind] += 1
        self._seen.add(key)
        self.write(ProblemLine(problem))
        if self.warn:
            warnings.warn(f"{problem.kind}: {problem.message}", LazytraceWarning, stacklevel=2)


def _graph_name(capture: Capture) -> str:
    name = f"graph {capture.graph}" + (f" ({capture.name})" if capture.name else "")
    return name if not capture.epoch else f"{name}, capture number {capture.epoch + 1}"


def capture_failed(capture: Capture) -> Problem:
    """A capture was broken off or invalidated."""
    return Problem(
        ProblemKind.CAPTURE_FAILED,
        f"the capture of {_graph_name(capture)} failed: its {capture.launches} launches never ran",
        graph=capture.graph,
        launch=capture.first_launch,
    )


def never_replayed(capture: Capture) -> Problem:
    """A graph was captured, and reset, destroyed or no longer traced before it ran."""
    return Problem(
        ProblemKind.NEVER_REPLAYED,
        f"{_graph_name(capture)} was never replayed while it was traced: its {capture.launches} "
        "launches did not run",
        graph=capture.graph,
        launch=capture.first_launch,
    )


def file_fault(fault: Exception | None) -> list[Problem]:
    """The first failure of the trace file; lines may still be waiting to be written."""
    if fault is None:
        return []
    return [Problem(ProblemKind.DROPPED, f"the trace file could not be written: {fault}")]


def dropped(counts: Mapping[str, int]) -> list[Problem]:
    """What the trace lacks, by reason."""
    return [
        Problem(ProblemKind.DROPPED, f"{count} dropped: {reason}")
        for reason, count in sorted(counts.items())
        if count
    ]


def tracer_errors(faults: Mapping[str, int], last: str | None) -> list[Problem]:
    """Faults of lazytrace itself that were contained."""
    return [
        Problem(ProblemKind.TRACER_ERROR, f"{count} contained in the {place}; the last one: {last}")
        for place, count in sorted(faults.items())
    ]
