"""Reads the values that are due, outside every capture, and writes them to the trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum

import attrs

from lazytrace._capture.pending import Capture, Group, PendingQueue, Run
from lazytrace._device.runtime import ReadError, Runtime, Stream
from lazytrace._values.completion import Completion, Progress
from lazytrace._values.journal import Journal
from lazytrace._values.leftovers import left_non_finite
from lazytrace._values.overwrites import Sighting, eager_group, readings_by_run, unread
from lazytrace._values.problem_log import capture_failed, never_replayed
from lazytrace._values.reading import ViewReader, ViewResult
from lazytrace._values.write_index import WriteIndex
from lazytrace.config import Ignore
from lazytrace.lines import ValuesLine
from lazytrace.problems import Problem, in_launch_order
from lazytrace.records import (
    ArgState,
    CaptureState,
    FlushResult,
    Observation,
    Point,
)

_DEADLINE_S = 10.0


class Trigger(Enum):
    """What made a flush happen: it decides when values count as read."""

    SYNC = "sync"
    REPLAY = "replay"
    REQUEST = "request"
    EXIT = "exit"


_POINTS = {
    Trigger.SYNC: Point.AFTER_REPLAY,
    Trigger.REPLAY: Point.AFTER_REPLAY,
    Trigger.REQUEST: Point.ON_REQUEST,
    Trigger.EXIT: Point.AT_EXIT,
}


@attrs.define
class Flusher:
    """Owns what is due between flushes. One flush at a time; a second one skips, never waits.

    ``progress`` tells the numbers of the latest launch and replay, ``refusal`` why the calling
    thread may not flush now, ``problem`` takes what a flush finds wrong, ``before_writing`` is
    called before each batch of lines, ``ignore`` are the rules for what is not wrong. Only the
    holder of the lock writes lines.
    """

    runtime: Runtime
    queue: PendingQueue
    journal: Journal
    completion: Completion
    reader: ViewReader
    progress: Callable[[], Progress]
    refusal: Callable[[], str | None]
    problem: Callable[[Problem], None]
    before_writing: Callable[[], None]
    ignore: tuple[Ignore, ...] = ()
    _eager: list[Run] = attrs.field(factory=list)
    _armed: dict[int, Capture] = attrs.field(factory=dict)
    _read: dict[int, Capture] = attrs.field(factory=dict)  # complete, may be read again
    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _holder: int | None = None

    @property
    def due(self) -> bool:
        """Whether a flush would have anything to do."""
        queue = self.queue
        return bool(
            queue.eager or queue.armed or queue.ended or queue.gone or self._eager or self._armed
        )

    def flush(self, trigger: Trigger, *, wait: bool = False, again: bool = False) -> FlushResult:
        """Reads what is due and done. With ``wait``, waits for the rest, at most ten seconds."""
        if not self._lock.acquire(blocking=False):
            return FlushResult(0, self._still_due(), "another flush is running")
        self._holder = threading.get_ident()
        try:
            return self._flush(trigger, wait=wait, again=again)
        finally:
            self._holder = None
            self._lock.release()

    def write_point(self) -> None:
        """Writes descriptions only."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._write_descriptions()
        finally:
            self._lock.release()

    def finish(self, reason: str, last_lines: Callable[[], None]) -> None:
        """Writes all that is left, states that the rest will not be read, and then ``last_lines``.

        Waits for a flush that runs on another thread, at most ten seconds.
        """
        # A signal handler may end the trace while this very thread flushes: it must not wait.
        mine = self._holder == threading.get_ident()
        locked = not mine and self._lock.acquire(timeout=_DEADLINE_S)
        try:
            self._write_descriptions(commit=False)
            self._abandon(reason)
            last_lines()
        finally:
            if locked:
                self._lock.release()

    def _flush(self, trigger: Trigger, *, wait: bool, again: bool) -> FlushResult:
        reason = self.refusal()
        if reason is None:
            self.journal.close_runs()
        if trigger is not Trigger.SYNC:
            self._touch()
        self._write_descriptions(commit=reason != "capturing")
        if reason is not None:
            return FlushResult(0, self._still_due(), reason)
        if again:
            self._arm_again()
        deadline = time.monotonic() + _DEADLINE_S if wait else None
        runs, captures = self._ready(deadline)
        completed, left = 0, None
        if runs or captures:
            completed, left = self._materialize(runs, captures, trigger)
        self.journal.commit()
        still_due = self._still_due()
        reason = left or "streams are busy"
        return FlushResult(completed, still_due, reason if still_due else None)

    # What is due

    def _write_descriptions(self, *, commit: bool = True) -> None:
        self.before_writing()
        self._settle()
        self.journal.drain()
        if commit:
            self.journal.commit()

    def _settle(self) -> None:
        """Takes over what the capture side has queued."""
        queue = self.queue
        while queue.eager:
            self._eager.append(queue.eager.popleft())
        while queue.ended:
            self._end(queue.ended.popleft())
        while queue.armed:
            capture = queue.armed.popleft()
            if capture.has_values:
                self._armed[capture.id] = capture
            else:
                self._read[capture.id] = capture
            self.journal.capture(capture)
        while queue.gone:
            self._gone(queue.gone.popleft())

    def _end(self, capture: Capture) -> None:
        self.journal.drain()
        if capture.state is CaptureState.FAILED:
            self.problem(capture_failed(capture))
        self.journal.capture(capture)
        if capture.gone:
            self._give_up(capture)

    def _gone(self, capture: Capture) -> None:
        """A graph was reset or destroyed: nothing of this capture will run again."""
        capture.gone = True
        self._read.pop(capture.id, None)
        if capture.state is CaptureState.OPEN:
            capture.state = CaptureState.FAILED
            self.problem(capture_failed(capture))
        elif capture.state is CaptureState.CAPTURED and not capture.armed:
            capture.state = CaptureState.NEVER_REPLAYED
            self.problem(never_replayed(capture))
        self.journal.drain()
        self.journal.capture(capture)
        if capture.id not in self._armed:
            self._give_up(capture)

    def _give_up(self, capture: Capture) -> None:
        """Forgets the values of a capture that will never be read."""
        self._uncount(capture)
        capture.views.clear()
        capture.groups.clear()
        capture.writes = None

    def _uncount(self, capture: Capture) -> None:
        self.queue.captured -= capture.pending_runs
        capture.pending_runs = 0

    def _arm_again(self) -> None:
        for capture in list(self._read.values()):
            capture.views = {
                view.id: view for group in capture.groups.values() for _, view in group.args.views
            }
            self._armed[capture.id] = capture

    def _still_due(self) -> int:
        eager = (*self._eager, *list(self.queue.eager))
        captures = (*self._armed.values(), *list(self.queue.armed))
        return sum(run.count for run in eager) + sum(capture.launches for capture in captures)

    # What is done

    def _ready(self, deadline: float | None) -> tuple[list[Run], list[Capture]]:
        """Due runs and captures whose work is done: by the program's synchronisations, or asked.

        All of them where the device is lost: they fail without being read.
        """
        done = self.completion
        unsure: set[Stream] = {
            (run.device, run.stream) for run in self._eager if not done.run_is_done(run)
        }
        unsure |= {
            (capture.device, capture.replay_stream)
            for capture in self._armed.values()
            if not done.capture_is_done(capture)
        }
        before = self.progress()
        try:
            idle = self.runtime.idle(unsure, deadline) if unsure else set()
        except ReadError as error:
            self.reader.broken = str(error)
            return list(self._eager), list(self._armed.values())
        for stream in idle:
            done.stream_synchronized(stream, before)
        return (
            [run for run in self._eager if done.run_is_done(run)],
            [capture for capture in self._armed.values() if done.capture_is_done(capture)],
        )

    # Reading

    def _materialize(
        self, runs: list[Run], captures: list[Capture], trigger: Trigger
    ) -> tuple[int, str | None]:
        """Reads each view once; returns launches completed, and why others are not."""
        groups = [eager_group(run) for run in runs]
        views = {view.id: view for group in groups for _, view in group.args.views}
        for capture in captures:
            views.update(capture.views)
            groups += capture.groups.values()
        written = {view.id for group in groups for view in group.kernel.written_views(group.args)}
        owners: dict[int, str] = {}
        if self.reader.blobs is not None:
            for group in groups:
                owners.update((view.id, group.kernel.name) for _, view in group.args.views)
        before = self.progress()
        results, left = self.reader.read(views.values(), written, owners)
        raced = self.progress() != before
        finished = [run for run in runs if all(view.id in results for _, view in run.args.views)]
        sightings = [self._eager_sighting(finished, trigger, raced)]
        completed = self._finish_runs(finished, results, sightings[0])
        for capture in captures:
            sightings.append(self._captured_sighting(capture, trigger, raced))
            completed += self._finish_capture(capture, results, sightings[-1])
        found = [p for seen in sightings for p in left_non_finite(seen, results, self.ignore)]
        for problem in in_launch_order(found):  # last: a warning may be made an error
            self.problem(problem)
        return completed, left

    def _eager_sighting(self, runs: list[Run], trigger: Trigger, raced: bool) -> Sighting:
        point = Point.AT_EXIT if trigger is Trigger.EXIT else Point.ON_REQUEST
        observed = Observation(point, raced=raced)
        groups = [eager_group(run) for run in runs]
        return Sighting(groups, observed, self.journal.writes.of_eager(runs))

    def _captured_sighting(self, capture: Capture, trigger: Trigger, raced: bool) -> Sighting:
        observed = Observation(_POINTS[trigger], replay=capture.replays, raced=raced)
        groups = list(capture.groups.values())
        return Sighting(groups, observed, self.journal.writes.of_capture(capture), capture.graph)

    def _finish_runs(
        self, runs: list[Run], results: dict[int, ViewResult], sighting: Sighting
    ) -> int:
        for run, group in zip(runs, sighting.groups):
            observed = sighting.observed
            if run.thread != threading.get_ident() and run.kernel.last is run:
                observed = attrs.evolve(observed, raced=True)
            self._write(group, results, observed, sighting.writes)
        finished = {run.id for run in runs}
        self._eager = [run for run in self._eager if run.id not in finished]
        return sum(run.count for run in runs)

    def _write(
        self,
        group: Group,
        results: dict[int, ViewResult],
        observed: Observation,
        writes: WriteIndex,
    ) -> None:
        for launches, readings in readings_by_run(group, results, observed, writes):
            self.journal.write(ValuesLine(launches, readings))

    def _finish_capture(
        self, capture: Capture, results: dict[int, ViewResult], sighting: Sighting
    ) -> int:
        found = [view for view in capture.views if view in results]
        if not found:
            return 0
        fresh = {view: results[view] for view in found}
        for group in sighting.groups:
            self._write(group, fresh, sighting.observed, sighting.writes)
        for view in found:
            del capture.views[view]
        if any(result.state is ArgState.MATERIALIZED for result in fresh.values()):
            capture.replays_read += 1
        self.journal.capture(capture)
        if capture.views:
            return 0
        del self._armed[capture.id]
        self._uncount(capture)
        completed = sum(group.launches for group in capture.groups.values() if group.runs)
        if capture.gone:
            self._give_up(capture)
        else:
            self._read[capture.id] = capture
        return completed

    def _abandon(self, reason: str) -> None:
        """States in the trace that what is still due will not be read."""
        given_up = ViewResult(ArgState.SKIPPED, reason)
        for run in self._eager:
            results = dict.fromkeys((view.id for _, view in run.args.views), given_up)
            self.journal.write(ValuesLine((run.id,), unread(run.args, results)))
        self._eager.clear()
        for capture in self._armed.values():
            results = dict.fromkeys(capture.views, given_up)
            for group in capture.groups.values():
                readings = unread(group.args, results)
                if readings and group.runs:
                    self.journal.write(ValuesLine(tuple(group.runs), readings))
            self.journal.capture(capture)
        self._armed.clear()

    def _touch(self) -> None:
        """Writes how often each live capture was replayed so far."""
        for capture in (*self._read.values(), *self._armed.values()):
            self.journal.capture(capture)
