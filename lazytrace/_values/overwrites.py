"""Says of each reading which later launch may have written the memory since.

What counts is what a launch may write: every argument that its kernel does not merely read, over
the bytes from the view's first to its last element. Two strided views that interleave overlap by
this, so an overwriting may be claimed that did not happen; a value is never called untouched.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import attrs

from lazytrace._capture.describe import ArgSet
from lazytrace._capture.pending import Capture, Group, Run
from lazytrace._values.reading import ViewResult
from lazytrace._values.write_index import NO_LAUNCH, WriteIndex
from lazytrace.records import Observation, Outcome, Overwritten, Reading, Role

_MAX_EAGER = 1024


@attrs.define
class Writes:
    """What the launches that the trace has taken over may have written.

    Of a capture each set of arguments keeps its last launch, and the index is built at the
    capture's first reading. Of eager launches the latest 1,024 distinct written views are kept:
    what was written through others stays ``possible``.
    """

    _eager: dict[int, tuple[int, int, int]] = attrs.field(factory=dict)

    def seen(self, run: Run) -> None:
        """Takes note of a run, or of its growth; runs come in the order of their ids."""
        if run.outcome is not Outcome.SUBMITTED:
            return
        if run.capture is not None:
            group = run.capture.groups.get(run.args.id)
            if group is not None:
                group.last = max(group.last, run.last_id)
            return
        eager = self._eager
        for view in run.kernel.written_views(run.args):
            eager.pop(view.id, None)
            eager[view.id] = (view.data_ptr, view.data_ptr + view.span, run.last_id)
        while len(eager) > _MAX_EAGER:
            del eager[next(iter(eager))]

    def of_capture(self, capture: Capture) -> WriteIndex:
        """What one replay of a capture writes."""
        if capture.writes is None:
            capture.writes = WriteIndex.of(
                (view.data_ptr, view.data_ptr + view.span, group.last)
                for group in capture.groups.values()
                if group.last != NO_LAUNCH
                for view in group.kernel.written_views(group.args)
            )
        return capture.writes

    def of_eager(self, runs: Sequence[Run]) -> WriteIndex:
        """What eager launches have written since the first of these runs."""
        since = min((run.id for run in runs), default=0)
        return WriteIndex.of(write for write in self._eager.values() if write[2] >= since)


@attrs.frozen
class Sighting:
    """Groups whose arguments were read at one moment, and what was written until then.

    ``graph`` is the number of the graph that the launches belong to; None for eager ones.
    """

    groups: Sequence[Group]
    observed: Observation
    writes: WriteIndex
    graph: int | None = None


def eager_group(run: Run) -> Group:
    """An eager run as a group of its own."""
    return Group(run.kernel, run.args, [run.id], run.count, run.last_id)


def first_untouched(runs: Sequence[int], writer: int, role: Role | None) -> int:
    """Where, in runs from the oldest on, those begin whose argument ``writer`` did not overwrite.

    A run that writes it itself left its own value there, unless it only reads the argument: then
    what it has found is gone. A run of several launches counts by its first one.
    """
    if not runs or runs[0] > writer:
        return 0
    return bisect_right(runs, writer) if role is Role.READ else bisect_left(runs, writer)


def readings_by_run(
    group: Group,
    results: Mapping[int, ViewResult],
    observed: Observation,
    writes: WriteIndex,
) -> Iterator[tuple[tuple[int, ...], dict[str, Reading]]]:
    """The readings of a group's arguments, and the runs for which they are true in this form."""
    roles = group.kernel.info.roles
    runs = sorted(group.runs)
    found: list[tuple[str, ViewResult, int, int]] = []
    for path, view in group.args.views:
        result = results.get(view.id)
        if result is not None:
            start = view.data_ptr
            writer = writes.last_writer(start, start + view.span)
            found.append((path, result, writer, first_untouched(runs, writer, roles.get(path))))
    if not found:
        return
    edges = {0, len(runs), *[cut for _, _, _, cut in found]}
    for first, behind in pairwise(sorted(edges)):
        readings = {
            path: result.reading(observed if cut <= first else by_launch(observed, writer))
            for path, result, writer, cut in found
        }
        yield tuple(runs[first:behind]), readings


def unread(args: ArgSet, results: Mapping[int, ViewResult]) -> dict[str, Reading]:
    """The readings of arguments that were given up."""
    return {path: results[view.id].reading(None) for path, view in args.views if view.id in results}


def by_launch(observed: Observation, writer: int) -> Observation:
    """The observation of a value that a launch may have overwritten."""
    return Observation(
        observed.point, observed.replay, Overwritten.BY_LAUNCH, writer, observed.raced
    )
