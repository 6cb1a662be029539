"""Reads the probes of launches: what each argument held at the launch, and what was wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from lazytrace._capture.pending import Run
from lazytrace._device.runtime import ReadError
from lazytrace._probes.placing import LAUNCH_FAILED
from lazytrace._probes.seam import LaunchProbes, Probe, ProbedLaunch, ProbeResult
from lazytrace._values.non_finite import non_finite
from lazytrace.config import Ignore
from lazytrace.problems import Problem
from lazytrace.records import (
    ArgState,
    Observation,
    Overwritten,
    Point,
    Reading,
    TensorStats,
)

_FINITE = TensorStats()


@attrs.frozen
class SeenLaunch:
    """What the probes of one launch saw, by argument path: as it began, and as it ended.

    ``unplaced`` is the launch's own before the reading: its exit hook may come meanwhile.
    """

    launch: ProbedLaunch
    unplaced: str | None
    inputs: Mapping[str, ProbeResult]
    outputs: Mapping[str, ProbeResult]

    @property
    def complete(self) -> bool:
        """Whether every probe that was placed has run."""
        return all(seen.runs or (seen.stats is None and seen.error) for seen in self._all())

    def _all(self) -> Iterator[ProbeResult]:
        yield from self.inputs.values()
        yield from self.outputs.values()

    def readings(self, *, captured: bool, raced: bool) -> dict[str, Reading]:
        """The readings of all arguments that have memory."""
        readings = dict(self.launch.refused)
        for path in {**self.launch.inputs, **self.launch.outputs}:
            before, after = self._side(path, captured, raced)
            missing = [side for side in (before, after) if isinstance(side, str)]
            if missing and not any(isinstance(side, tuple) for side in (before, after)):
                readings[path] = Reading(ArgState.SKIPPED, missing[0])
                continue
            values, observed = before if isinstance(before, tuple) else (None, None)
            values_after, observed_after = after if isinstance(after, tuple) else (None, None)
            readings[path] = Reading(
                ArgState.MATERIALIZED,
                missing[0] if missing else None,
                values,
                observed,
                values_after,
                observed_after,
            )
        return readings

    def _side(self, path: str, captured: bool, raced: bool) -> list[_Side]:
        return [
            _side(
                path,
                places,
                seen,
                self.unplaced if point is Point.AFTER_LAUNCH else None,
                point,
                captured,
                raced,
            )
            for places, seen, point in (
                (self.launch.inputs, self.inputs, Point.AT_LAUNCH),
                (self.launch.outputs, self.outputs, Point.AFTER_LAUNCH),
            )
        ]

    def bad_runs(self) -> list[int]:
        """The runs of the probes that are known to have seen what is not finite, first to last."""
        runs: set[int] = set()
        for seen in self._all():
            if seen.first_bad_run is not None:
                runs.add(seen.first_bad_run)
            if seen.stats is not None and seen.stats.first_nonfinite_index is not None:
                runs.add(seen.runs)
        return sorted(runs)

    def readings_in(self, run: int, *, captured: bool, raced: bool) -> dict[str, Reading]:
        """What the arguments held in one run, as far as the slots still tell.

        A probe keeps its latest statistics, and of the first bad run where the first bad element
        was; between those two runs nothing is known of it.
        """
        return attrs.evolve(
            self,
            inputs=_in_run(self.inputs, run),
            outputs=_in_run(self.outputs, run),
        ).readings(captured=captured, raced=raced)


# One side of an argument: its values with when they were read, why there are none, or no side.
_Side = tuple[TensorStats, Observation] | str | None


def _side(
    path: str,
    places: Mapping[str, int],
    results: Mapping[str, ProbeResult],
    unplaced: str | None,
    point: Point,
    captured: bool,
    raced: bool,
) -> _Side:
    if path not in places:
        return None
    if unplaced is not None:
        return unplaced
    seen = results.get(path)
    if seen is None or seen.stats is None or not seen.runs:
        return (seen.error if seen is not None else None) or "not_run"
    replay = seen.runs if captured else None
    return seen.stats, Observation(point, replay, Overwritten.NO, raced=raced)


def _in_run(results: Mapping[str, ProbeResult], run: int) -> dict[str, ProbeResult]:
    known = {path: _of_run(seen, run) for path, seen in results.items()}
    return {path: seen for path, seen in known.items() if seen is not None}


def _of_run(seen: ProbeResult, run: int) -> ProbeResult | None:
    """What a probe saw in one run; None where that is not known."""
    if seen.runs == run:
        return seen
    if seen.first_bad_run == run:
        bad = TensorStats(first_nonfinite_index=seen.first_bad_index)
        return ProbeResult(run, bad, None, run, seen.first_bad_index)
    if seen.runs > run and (seen.first_bad_run is None or seen.first_bad_run > run):
        return ProbeResult(run, _FINITE)
    return None


@attrs.define
class ProbeReader:
    """Reads the probes of launches whose work is done, and gives their slots back.

    ``broken`` keeps the error of a device that will answer no more. ``data_reason`` says why no
    bytes are kept, where some were asked for.
    """

    probes: LaunchProbes
    ignore: tuple[Ignore, ...] = ()
    data_reason: str | None = None
    broken: str | None = None

    def read(self, runs: Sequence[Run]) -> tuple[dict[int, SeenLaunch], str | None]:
        """What was seen, by run id; why the rest stays due, if it does."""
        launches = {run.id: run.probed for run in runs if run.probed is not None}
        if self.broken is not None:
            lost = self.broken
            return {number: _failed(launch, lost) for number, launch in launches.items()}, None
        unplaced = {number: launch.unplaced for number, launch in launches.items()}
        probes = [
            probe
            for number, launch in launches.items()
            for probe in launch.placed(unplaced[number])
        ]
        try:
            results = self.probes.read(probes) if probes else []
        except ReadError as error:
            if not error.sticky:
                return {}, str(error)
            self.broken = str(error)
            return self.read(runs)
        by_probe = {id(probe): seen for probe, seen in zip(probes, results)}
        return {
            number: _seen(launch, unplaced[number], by_probe) for number, launch in launches.items()
        }, None

    def readings(self, run: Run, seen: SeenLaunch, *, raced: bool) -> dict[str, Reading]:
        """The readings of a launch's arguments, as the trace is to have them."""
        readings = seen.readings(captured=run.capture is not None, raced=raced)
        for path, reading in readings.items():
            if self.broken is not None and reading.reason == self.broken:
                readings[path] = Reading(ArgState.FAILED, self.broken)
            elif self.data_reason is not None:
                readings[path] = attrs.evolve(reading, data_reason=self.data_reason)
        return readings

    def problems(self, run: Run, seen: SeenLaunch, *, raced: bool) -> list[Problem]:
        """What the launch found or left that is not finite: of each argument the first time."""
        found: dict[str | None, Problem] = {}
        captured = run.capture is not None
        for number in seen.bad_runs():
            readings = seen.readings_in(number, captured=captured, raced=raced)
            for problem in non_finite(
                run.id,
                run.kernel.info,
                run.args.args(),
                readings,
                ignore=self.ignore,
                graph=None if run.capture is None else run.capture.graph,
            ):
                found.setdefault(problem.argument, problem)
        return list(found.values())

    def in_flight(self, run: Run, seen: SeenLaunch) -> bool:
        """Whether an eager launch may still be under way, whatever its stream says."""
        open_elsewhere = seen.unplaced == LAUNCH_FAILED and run.thread != threading.get_ident()
        return self.broken is None and (open_elsewhere or not seen.complete)

    def release(self, runs: Iterable[Run]) -> None:
        """Gives the slots of launches back that will not run again."""
        for run in runs:
            launch, run.probed = run.probed, None
            if launch is not None and self.broken is None:
                before, after = launch.before, launch.after
                launch.before = launch.after = None
                for probe in (before, after):
                    if probe is not None:
                        self.probes.release(probe)


def _seen(
    launch: ProbedLaunch, unplaced: str | None, results: Mapping[int, list[ProbeResult]]
) -> SeenLaunch:
    def by_path(probe: Probe | None, places: Mapping[str, int]) -> dict[str, ProbeResult]:
        seen = results.get(id(probe))
        return {} if seen is None else {path: seen[place] for path, place in places.items()}

    return SeenLaunch(
        launch,
        unplaced,
        by_path(launch.before, launch.inputs),
        by_path(launch.after, launch.outputs),
    )


def _failed(launch: ProbedLaunch, reason: str) -> SeenLaunch:
    lost = ProbeResult(0, None, reason)
    inputs, outputs = (dict.fromkeys(side, lost) for side in (launch.inputs, launch.outputs))
    return SeenLaunch(launch, None, inputs, outputs)
