"""Finds which launches had NaN or infinity in an argument, as far as the readings can say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from lazytrace.config import Ignore
from lazytrace.problems import Origin, Problem, ProblemKind, Side
from lazytrace.records import (
    Arg,
    ArgState,
    ConstexprArg,
    KernelInfo,
    Observation,
    Overwritten,
    Point,
    Reading,
    Role,
    ScalarArg,
    TensorArg,
    TensorStats,
)

_SIDES = {Role.READ: Side.INPUT, Role.WRITE: Side.OUTPUT}
_ORIGINS = {
    Origin.CAME_IN: "an input was not finite when the launch began",
    Origin.MADE_HERE: "every input was finite when the launch began",
    None: "not every input is known to have been finite when the launch began",
}


def first_non_finite(stats: TensorStats | None) -> int | None:
    """The row-major index of the first element that is NaN or infinite, in either part."""
    return None if stats is None else stats.first_nonfinite_index


def non_finite(
    launch: int,
    kernel: KernelInfo,
    args: Mapping[str, Arg],
    readings: Mapping[str, Reading],
    *,
    ignore: Sequence[Ignore] = (),
    graph: int | None = None,
) -> list[Problem]:
    """The ``non_finite`` problems of one launch: at most one for each argument, in their order.

    ``args`` are the launch's arguments by path, ``readings`` what was read of them. Where both
    sides of an argument are not finite, the input is named. ``side`` and ``origin`` are certain
    for values read at the launch. For values read later ``side`` is the argument's role, where
    that is one of the two and no launch that was seen has overwritten the value.
    """
    found = []
    origin = _Origins(kernel, args, readings, ignore)
    for path, reading in readings.items():
        for stats, observed, side in _sides(reading, kernel.roles.get(path, Role.UNKNOWN)):
            index = first_non_finite(stats)
            if index is None or _ignored(ignore, kernel.name, path, index, args):
                continue
            known = origin.of(observed.point)
            found.append(
                Problem(
                    ProblemKind.NON_FINITE,
                    _message(launch, kernel, path, args.get(path), stats, index)
                    + _evidence(observed, known),
                    kernel=kernel.name,
                    argument=path,
                    launch=launch,
                    graph=graph,
                    replay=observed.replay,
                    side=side,
                    origin=known,
                    index=index,
                    evidence=observed.point,
                )
            )
            break
    return found


def _sides(reading: Reading, role: Role) -> Iterator[tuple[TensorStats, Observation, Side | None]]:
    """What was read of an argument, the launch's input first, and which side of it that is."""
    values, observed = reading.values, reading.observed
    if values is not None and observed is not None:
        if observed.point is not Point.AT_LAUNCH:
            overwritten = observed.overwritten is Overwritten.BY_LAUNCH
            yield values, observed, None if overwritten else _SIDES.get(role)
        elif role is not Role.WRITE:  # else the kernel does not look at what it found
            yield values, observed, Side.INPUT
    if reading.values_after is not None and reading.observed_after is not None:
        yield reading.values_after, reading.observed_after, Side.OUTPUT


@attrs.define
class _Origins:
    """Where a launch's bad values came from, as far as its inputs were read at the launch."""

    kernel: KernelInfo
    args: Mapping[str, Arg]
    readings: Mapping[str, Reading]
    ignore: Sequence[Ignore]

    def of(self, point: Point) -> Origin | None:
        """The origin of a value that was read at this point."""
        if point is Point.AT_LAUNCH:
            return Origin.CAME_IN
        return self._of_outputs() if point is Point.AFTER_LAUNCH else None

    def _of_outputs(self) -> Origin | None:
        kernel = self.kernel
        certain = bool(kernel.roles) and not kernel.reads_unknown
        for path, arg in self.args.items():
            if not isinstance(arg, TensorArg) or kernel.roles.get(path) is Role.WRITE:
                continue
            reading = self.readings.get(path)
            if arg.numel == 0 or (reading is not None and reading.state is ArgState.EMPTY):
                continue
            if reading is None or reading.values is None or not _at_launch(reading):
                certain = False
                continue
            index = first_non_finite(reading.values)
            if index is None:
                continue
            if not _ignored(self.ignore, kernel.name, path, index, self.args):
                return Origin.CAME_IN
            certain = False  # padding may have leaked, or not
        return Origin.MADE_HERE if certain else None


def _at_launch(reading: Reading) -> bool:
    return reading.observed is not None and reading.observed.point is Point.AT_LAUNCH


def _ignored(
    ignore: Iterable[Ignore], kernel: str, path: str, index: int, args: Mapping[str, Arg]
) -> bool:
    """Whether a rule takes what lies at, and behind, an argument's element for no fault."""
    for rule in ignore:
        if not rule.names(kernel, path):
            continue
        if rule.rows_from is None:
            return True
        first, arg = _rows_from(rule, args), args.get(path)
        if first is not None and isinstance(arg, TensorArg) and _row(arg, index) >= first:
            return True
    return False


def _rows_from(rule: Ignore, args: Mapping[str, Arg]) -> int | None:
    """The first ignored row; None where the launch has no integer argument of that name."""
    if not isinstance(rule.rows_from, str):
        return rule.rows_from
    arg = args.get(rule.rows_from)
    value = arg.value if isinstance(arg, (ScalarArg, ConstexprArg)) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _row(arg: TensorArg, index: int) -> int:
    """The index along dimension 0 of a row-major index."""
    return index * arg.shape[0] // arg.numel if arg.shape else 0


def _message(
    launch: int,
    kernel: KernelInfo,
    path: str,
    arg: Arg | None,
    stats: TensorStats,
    index: int,
) -> str:
    counts = ((stats.nan_count, "NaN"), (stats.posinf_count, "inf"), (stats.neginf_count, "-inf"))
    what = ", ".join(f"{count} {name}" for count, name in counts if count) or "not finite"
    shape = f" of shape {list(arg.shape)}" if isinstance(arg, TensorArg) else ""
    return f"{path} of {kernel.name} (launch {launch}): {what}, first at index {index}{shape}"


def _evidence(observed: Observation, origin: Origin | None) -> str:
    """How the values that show the problem were read, and so what they prove."""
    replay = "" if observed.replay is None else f" in replay {observed.replay}"
    raced = "; other work was submitted while it was read" if observed.raced else ""
    if observed.point is Point.AT_LAUNCH:
        return f"; the launch found it so{replay}{raced}"
    if observed.point is Point.AFTER_LAUNCH:
        return f"; the launch left it so{replay}, and {_ORIGINS[origin]}{raced}"
    when = "the launch" if observed.replay is None else f"replay {observed.replay}"
    left = "" if observed.replay is None else ", so it is what the replay left there"
    since = "something"
    if observed.overwritten is Overwritten.BY_LAUNCH:
        since = f"launch {observed.overwritten_by}"
    return (
        f"; read after {when}{left}: {since} may have written it since the launch, "
        f"and whether it was made here or came in is not known{raced}"
    )
