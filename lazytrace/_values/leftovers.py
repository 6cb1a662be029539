"""Chooses, for NaN and infinity that were found later, the launch that is to be named for them.

A value that was read after a replay lies in memory that many launches may have shared. It is held
against those launches only that no later one, as far as was seen, has overwritten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import attrs

from lazytrace._capture.pending import Group
from lazytrace._capture.views import TensorView
from lazytrace._values.non_finite import first_non_finite, non_finite
from lazytrace._values.overwrites import Sighting, by_launch, first_untouched
from lazytrace._values.reading import ViewResult
from lazytrace.config import Ignore
from lazytrace.problems import Problem
from lazytrace.records import Reading, Role


def left_non_finite(
    sighting: Sighting, results: Mapping[int, ViewResult], ignore: Sequence[Ignore] = ()
) -> list[Problem]:
    """The problems that the results of one flush show, by launch.

    Launches that passed the same arguments had, as read now, the same values: only the first of
    them that was not overwritten is named, once for each argument.
    """
    bad = {view: result for view, result in results.items() if _is_bad(result)}
    if not bad:
        return []
    suspects = [group for group in sighting.groups if group.runs]
    blamed = _Blame(bad, sighting, _writers(suspects, bad))
    launches: dict[int, tuple[Group, dict[str, Reading]]] = {}
    for group in suspects:
        for path, view in group.args.views:
            named = blamed.launch(group, path, view) if view.id in bad else None
            if named is not None:
                launch, reading = named
                launches.setdefault(launch, (group, {}))[1][path] = reading
    return [
        problem
        for launch, (group, readings) in sorted(launches.items(), key=lambda item: item[0])
        for problem in non_finite(
            launch,
            group.kernel.info,
            group.args.args(),
            readings,
            ignore=ignore,
            graph=sighting.graph,
        )
    ]


def _is_bad(result: ViewResult) -> bool:
    return first_non_finite(result.values) is not None


def _writers(
    groups: Iterable[Group], bad: Mapping[int, ViewResult]
) -> Mapping[int, list[TensorView]]:
    """The bad views that a launch may have written, by the launch."""
    writers: dict[int, list[TensorView]] = defaultdict(list)
    for group in groups:
        for view in group.kernel.written_views(group.args):
            if view.id in bad:
                writers[group.last].append(view)
    return writers


@attrs.define
class _Blame:
    bad: Mapping[int, ViewResult]
    sighting: Sighting
    writers: Mapping[int, Sequence[TensorView]]

    def launch(self, group: Group, path: str, view: TensorView) -> tuple[int, Reading] | None:
        """The launch to name for a bad view, and the reading that shows it.

        None where the bad element was left by a later launch that is named for it itself.
        """
        result = self.bad[view.id]
        address = _address(view, first_non_finite(result.values) or 0)
        writer = self.sighting.writes.last_writer(address, address + view.element_size)
        role = group.kernel.info.roles.get(path)
        runs = sorted(group.runs)
        untouched = first_untouched(runs, writer, role)
        if untouched < len(runs):
            return runs[untouched], result.reading(self.sighting.observed)
        if writer == group.last and role is not Role.READ:
            return writer, result.reading(self.sighting.observed)
        if any(_holds(written, address) for written in self.writers.get(writer, ())):
            return None
        return runs[-1], result.reading(by_launch(self.sighting.observed, writer))


def _address(view: TensorView, index: int) -> int:
    """The address of an element, given its row-major index in the view."""
    offset = 0
    for size, stride in zip(reversed(view.shape), reversed(view.strides)):
        index, coordinate = divmod(index, size)
        offset += coordinate * stride
    return view.data_ptr + offset * view.element_size


def _holds(view: TensorView, address: int) -> bool:
    """Whether an element of the view has this address; False at worst where strides overlap."""
    offset = address - view.data_ptr
    steps = sorted(zip(view.strides, view.shape), reverse=True)
    for stride, size in steps:
        if stride > 0:
            step = stride * view.element_size
            offset -= min(offset // step, size - 1) * step
    return 0 <= offset < view.element_size
