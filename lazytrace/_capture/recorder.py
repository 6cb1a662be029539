"""Turns one launch, as the hook saw it, into a run in the pending queue."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import attrs
import torch
from torch._C import _is_torch_function_mode_enabled as _function_mode_is_on

from lazytrace._capture.call_site import call_site
from lazytrace._capture.describe import ArgSet, Describer
from lazytrace._capture.graphs import GraphWatch
from lazytrace._capture.kernels import KernelEntry, KernelRegistry
from lazytrace._capture.pending import Capture, Group, PendingQueue, Run
from lazytrace._capture.recognise import arg_test
from lazytrace._capture.repeat import repeat_of
from lazytrace._device.runtime import Runtime
from lazytrace._probes.placing import Prober
from lazytrace.config import Options
from lazytrace.records import ArgState, Frame, Outcome, Phase

# How late a launch may reach the trace: a file must survive kill -9, memory need not.
_FILE_LAUNCHES = 1000
_FILE_S = 1.0
_MEMORY_LAUNCHES = 10_000


class PhaseContext(threading.local):
    """Which part of the program the thread is in."""

    phase: Phase = Phase.RUN


@attrs.define
class Recorder:
    """Records launches: host Python only, no lock, no device work, no file.

    Ids come from one atomic counter. A launch joins a run only if its id follows the run's last
    one, so that runs of several threads never claim the same id.
    """

    options: Options
    runtime: Runtime
    queue: PendingQueue
    kernels: KernelRegistry
    graphs: GraphWatch
    phase: PhaseContext
    write: Callable[[], None]  # a write point; called outside captures only
    to_file: bool
    describer: Describer = attrs.field(factory=Describer)
    prober: Prober | None = None  # at_launch mode, on a device
    mark: str | None = None
    paused: int = 0
    last_id: int = -1
    ids: Iterator[int] = attrs.field(factory=itertools.count)
    write_at: int = attrs.field(init=False)
    _written_at: float = 0.0
    _stacks: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._stacks = self.options.stacks
        self.write_at = 0 if self.to_file else _MEMORY_LAUNCHES

    def launched(
        self,
        kernel: Any,
        grid: Any,
        stream: int,
        args: tuple[Any, ...],
        outcome: Outcome = Outcome.SUBMITTED,
    ) -> None:
        """Records one launch that is about to be submitted (or, ``outcome``, failed before)."""
        if self.paused:
            return
        entry = self.kernels.entry(kernel)
        if not entry.traced:
            return
        capture = self.graphs.capture_at(stream) if stream else None
        last = entry.last
        if last is not None and not _function_mode_is_on() and self.describer.same(last.args, args):
            described = last.args
        else:
            described = self._describe(entry, args, quiet=bool(capture or self.graphs.open))
        number = next(self.ids)
        self._record(entry, grid, stream, described, capture, number, outcome)
        self._expect_repeat(entry, described, args, outcome)
        self._write_if_late(capture, number)

    def repeated(
        self,
        entry: KernelEntry,
        grid: Any,
        stream: int,
        described: ArgSet,
        number: int | None = None,
    ) -> None:
        """Records one launch whose arguments were recognised; ``number``: its id if it has one."""
        if self.paused:
            return
        capture = self.graphs.capture_at(stream) if stream else None
        if number is None:
            number = next(self.ids)
        self._record(entry, grid, stream, described, capture, number, Outcome.SUBMITTED)
        self._write_if_late(capture, number)

    def _record(
        self,
        entry: KernelEntry,
        grid: Any,
        stream: int,
        described: ArgSet,
        capture: Capture | None,
        number: int,
        outcome: Outcome,
    ) -> None:
        """Adds the launch to its kernel's last run, or begins a run with it."""
        self.last_id = number
        site = call_site() if self._stacks else None
        if grid.__class__ is not tuple:
            grid = tuple(grid)
        run = entry.last
        if (
            run is not None
            and run.args is described
            and run.token is self.queue.token
            and run.id + run.count == number
            and run.grid == grid
            and run.stream == stream
            and run.capture is capture
            and run.thread == get_ident()
            and run.mark is self.mark
            and run.phase is self.phase.phase
            and run.call_site == site
            and outcome is Outcome.SUBMITTED
        ):
            self._join(run, entry)
        else:
            self._begin(entry, grid, stream, described, capture, site, number, outcome)

    def _join(self, run: Run, entry: KernelEntry) -> None:
        run.count += 1
        if run.token is not self.queue.token or entry.last is not run:
            self.queue.new.append(run)  # a flush on another thread may be past it
        capture = run.capture
        if capture is not None:
            capture.launches += 1
            capture.groups[run.args.id].launches += 1
        elif run.values is ArgState.PENDING and entry.samples_left:
            entry.samples_left -= 1

    def _expect_repeat(
        self, entry: KernelEntry, described: ArgSet, args: tuple[Any, ...], outcome: Outcome
    ) -> None:
        """Prepares for further launches with these arguments, where that can pay.

        At once for a kernel's first launch, which is slow in any case; for other arguments when
        they come a second time.
        """
        if described.test is None and entry.first and self.describer.recognisable(described):
            described.test = arg_test(described.items, args)
        entry.first = False
        if described.test is None or self._stacks or self.prober or outcome is Outcome.FAILED:
            self.kernels.repeats.pop(entry.key, None)
            return
        if described.repeat is None:
            described.repeat = repeat_of(self, entry, described, described.test)
        self.kernels.repeats[entry.key] = described.repeat

    def _write_if_late(self, capture: Capture | None, number: int) -> None:
        if capture is None and number >= self.write_at:
            self.write_point()

    def _describe(self, entry: KernelEntry, args: tuple[Any, ...], *, quiet: bool) -> ArgSet:
        with torch._C.DisableTorchFunction():
            return self.describer.describe(
                entry.arg_names,
                entry.constexprs,
                args,
                entry.arg_sets,
                None if entry.last is None else entry.last.args,
                quiet=quiet,
            )

    def _begin(
        self,
        entry: KernelEntry,
        grid: Any,
        stream: int,
        described: ArgSet,
        capture: Capture | None,
        site: tuple[Frame, ...] | None,
        number: int,
        outcome: Outcome,
    ) -> None:
        if outcome is Outcome.SUBMITTED and 0 in grid[:3]:
            outcome = Outcome.EMPTY_GRID
        values, reason = self._plan(entry, capture, outcome)
        device = self.runtime.current_device()
        self.runtime.note_stream(device, stream)
        run = Run(
            id=number,
            kernel=entry,
            args=described,
            grid=grid,
            stream=stream,
            device=device,
            thread=get_ident(),
            time_ns=time.time_ns(),
            phase=self.phase.phase,
            mark=self.mark,
            capture=capture,
            index=None if capture is None else capture.launches,
            values=values,
            reason=reason,
            outcome=outcome,
            call_site=site,
            token=self.queue.token,
        )
        if values is ArgState.PENDING and self.prober is not None:
            self.prober.before(run)
        if capture is not None:
            self._capture(run, capture)
        elif run.values is ArgState.PENDING:
            self.queue.eager.append(run)
        entry.last = run
        self.queue.new.append(run)
        self.write_at = min(self.write_at, self._deadline(number, entry))

    def _plan(
        self, entry: KernelEntry, capture: Capture | None, outcome: Outcome
    ) -> tuple[ArgState, str | None]:
        """What is to become of the launch's values."""
        if outcome is Outcome.EMPTY_GRID:
            return ArgState.SKIPPED, "not_executed"
        if outcome is Outcome.FAILED:
            return ArgState.SKIPPED, "launch_failed"
        if self.options.values == "off":
            return ArgState.OFF, None
        if self.options.values == "at_launch" and self.prober is None:
            return ArgState.SKIPPED, "no_device"
        if self.phase.phase is Phase.TRIAL and not self.options.trial_values:
            return ArgState.OFF, "autotune_trial"
        if capture is not None and capture.foreign:
            return ArgState.SKIPPED, "foreign_capture"
        if self.queue.full:
            self.queue.refused += 1
            return ArgState.SKIPPED, "max_pending"
        if capture is None and entry.samples_left is not None:
            if entry.samples_left <= 0:
                return ArgState.SKIPPED, "not_sampled"
            entry.samples_left -= 1
        return ArgState.PENDING, None

    def _capture(self, run: Run, capture: Capture) -> None:
        capture.launches += 1
        if capture.first_launch is None:
            capture.first_launch = run.id
        capture.kernels[run.kernel.key] = run.kernel.ref()
        args = run.args
        group = capture.groups.get(args.id)
        if group is None:
            group = capture.groups[args.id] = Group(run.kernel, args)
        group.launches += 1
        if run.values is not ArgState.PENDING:
            return
        self.queue.captured += 1
        capture.pending_runs += 1
        if run.probed is not None:
            capture.probed.append(run)
            return
        group.runs.append(run.id)
        for _, view in args.views:
            capture.views[view.id] = view

    def _deadline(self, number: int, entry: KernelEntry) -> int:
        """The launch at which the queue is to be written: at once for a kernel's first one."""
        if not self.to_file:
            return number + _MEMORY_LAUNCHES
        if not entry.written or time.monotonic() - self._written_at >= _FILE_S:
            return number
        return number + _FILE_LAUNCHES

    def write_point(self) -> None:
        """Brings the queue to the trace; not in a capture."""
        self._written_at = time.monotonic()
        self.write_at = self.last_id + (_FILE_LAUNCHES if self.to_file else _MEMORY_LAUNCHES)
        self.write()
