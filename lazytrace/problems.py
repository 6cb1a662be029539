"""What is wrong with a traced program, in the words that its author needs."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from lazytrace.arguments import Point, WireEnum


class ProblemKind(WireEnum):
    """The kinds of problem that a tracer reports."""

    NON_FINITE = "non_finite"
    DANGLING = "dangling"
    CAPTURE_FAILED = "capture_failed"
    NEVER_REPLAYED = "never_replayed"
    INVISIBLE_LAUNCHES = "invisible_launches"
    DROPPED = "dropped"
    TRACER_ERROR = "tracer_error"


class Side(WireEnum):
    """Whether a launch found the bad value or left it."""

    INPUT = "input"
    OUTPUT = "output"


class Origin(WireEnum):
    """Whether the launch made the bad value or an input brought it."""

    MADE_HERE = "made_here"
    CAME_IN = "came_in"


@attrs.frozen
class Problem:
    """One fault of the traced program, or of tracing it.

    ``launch`` is a launch id, ``graph`` a graph number, ``index`` an element's row-major index in
    the argument, ``evidence`` when the values that show it were read.

    ``origin`` is known where the values were read at the launch itself: ``came_in`` where an
    input held a non-finite value already, ``made_here`` where every input was read and was finite.
    Values read later claim neither.
    """

    kind: ProblemKind
    message: str
    kernel: str | None = None
    argument: str | None = None
    launch: int | None = None
    graph: int | None = None
    replay: int | None = None
    side: Side | None = None
    origin: Origin | None = None
    index: int | None = None
    evidence: Point | None = None


def in_launch_order(problems: Iterable[Problem]) -> list[Problem]:
    """The problems by launch, those of no launch last; of one launch in the order given."""
    return sorted(problems, key=lambda problem: (problem.launch is None, problem.launch or 0))
