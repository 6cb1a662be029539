"""The flush of values="at_launch": reads the slots that probes have written, not the tensors."""

from __future__ import annotations

import attrs

from lazytrace._capture.pending import Capture, Run
from lazytrace._probes.placing import Prober
from lazytrace._probes.reading import ProbeReader, SeenLaunch
from lazytrace._values.flush import Flusher, Trigger
from lazytrace.lines import ValuesLine
from lazytrace.records import ArgState, FlushResult, Reading


@attrs.define(kw_only=True)
class ProbeFlusher(Flusher):
    """A flusher of launches that carry probes.

    The probes of a captured launch are read after the first replay; after later ones on request,
    at exit, and when the graph is gone. Those of an eager launch are read once.
    """

    prober: Prober
    slots: ProbeReader

    def _flush(self, trigger: Trigger, *, wait: bool, again: bool) -> FlushResult:
        result = Flusher._flush(self, trigger, wait=wait, again=again)
        if self.refusal() is None:
            self.prober.relieve()
        return result

    # What is due

    def _touch(self) -> None:
        for capture in list(self._read.values()):
            if capture.probed and capture.replays > capture.replays_seen:
                self._armed[capture.id] = self._read.pop(capture.id)
        Flusher._touch(self)

    def _arm_again(self) -> None:
        for number, capture in list(self._read.items()):
            if capture.probed:
                self._armed[number] = self._read.pop(number)

    def _gone(self, capture: Capture) -> None:
        if capture.probed and capture.replays > capture.replays_seen:
            self._armed[capture.id] = capture  # the slots outlive the graph
        Flusher._gone(self, capture)

    def _give_up(self, capture: Capture) -> None:
        if not capture.copied:  # else what holds a copy of this graph may still run it
            self.slots.release(capture.probed)
            self.prober.probes.forget(capture.id)
        capture.probed.clear()
        Flusher._give_up(self, capture)

    # Reading

    def _materialize(
        self, runs: list[Run], captures: list[Capture], trigger: Trigger
    ) -> tuple[int, str | None]:
        replays = {capture.id: capture.replays for capture in captures}
        launches = [*runs, *(run for capture in captures for run in capture.probed)]
        before = self.progress()
        seen, left = self.slots.read(launches)
        raced = self.progress() != before
        if left is not None:
            return 0, left
        finished = [run for run in runs if not self.slots.in_flight(run, seen[run.id])]
        problems = []
        for run in (*finished, *launches[len(runs) :]):
            self._write_readings(run, seen[run.id], raced)
            problems += self.slots.problems(run, seen[run.id], raced=raced)
        done = {run.id for run in finished}
        self._eager = [run for run in self._eager if run.id not in done]
        self.slots.release(finished)
        completed = len(finished)
        for capture in captures:
            completed += self._finish_probed(capture, replays[capture.id])
        for problem in problems:  # last: a warning may have been turned into an error
            self.problem(problem)
        return completed, None if len(finished) == len(runs) else "launches are under way"

    def _write_readings(self, run: Run, seen: SeenLaunch, raced: bool) -> None:
        readings = self.slots.readings(run, seen, raced=raced)
        if readings:
            self.journal.write(ValuesLine((run.id,), readings))

    def _finish_probed(self, capture: Capture, replays: int) -> int:
        capture.replays_seen = replays
        if self.slots.broken is None:
            capture.replays_read += 1
        self.journal.capture(capture)
        self._armed.pop(capture.id, None)
        self._uncount(capture)
        completed = len(capture.probed)
        if capture.gone:
            self._give_up(capture)
        else:
            self._read[capture.id] = capture
        return completed

    def _abandon(self, reason: str) -> None:
        for capture in list(self._armed.values()):
            if not capture.replays_seen:
                for run in capture.probed:
                    self._write_unread(run, reason)
        for run in self._eager:
            self._write_unread(run, reason)
        self._eager.clear()
        Flusher._abandon(self, reason)

    def _write_unread(self, run: Run, reason: str) -> None:
        given_up = Reading(ArgState.SKIPPED, reason)
        readings = {path: given_up for path, view in run.args.views if 0 not in view.shape}
        if readings:
            self.journal.write(ValuesLine((run.id,), readings))
