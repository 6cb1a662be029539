"""Writes what is finished or new into the trace: the last step on a launch's way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from lazytrace._capture.pending import Capture, PendingQueue, Run
from lazytrace._trace.sink import Sink
from lazytrace._values.overwrites import Writes
from lazytrace.lines import ArgsLine, CaptureLine, KernelLine, LaunchLine, Line
from lazytrace.records import CaptureState


@attrs.define
class Journal:
    """Turns runs and captures into lines for every sink, in an order that can be joined."""

    queue: PendingQueue
    sinks: Sequence[Sink]
    launches: int = 0
    writes: Writes = attrs.field(factory=Writes)
    _growing: list[Run] = attrs.field(factory=list)

    def write(self, line: Line) -> None:
        """Gives one line to every sink."""
        for sink in self.sinks:
            sink.write(line)

    def commit(self) -> None:
        """Brings what was written to where it lasts: file output, so never in a capture."""
        for sink in self.sinks:
            sink.flush()

    def drain(self) -> None:
        """Writes every run that the trace does not know yet, and those that have grown."""
        runs, self._growing = self._growing, []
        new = self.queue.new
        while new:
            runs.append(new.popleft())
        for run in runs:
            # Asked before the count is read: a launch that joins later queues the run again.
            if run.kernel.last is run and run.token is self.queue.token:
                self._growing.append(run)
            if run.written != run.count:
                self._run(run)

    def close_runs(self) -> None:
        """Lets no later launch join a run that is known now."""
        self.queue.renew_token()

    def capture(self, capture: Capture) -> None:
        """Writes a capture, if anything about it has changed."""
        state = (
            capture.name,
            capture.state,
            capture.launches,
            capture.replays,
            capture.replays_read,
        )
        if state == capture.written:
            return
        capture.written = state
        self.write(
            CaptureLine(
                id=capture.id,
                graph=capture.graph,
                name=capture.name,
                epoch=capture.epoch,
                cuda_id=capture.cuda_id,
                stream=capture.stream,
                device=capture.device,
                thread=capture.thread,
                time_ns=capture.time_ns,
                state=capture.state,
                launches=capture.launches,
                replays=capture.replays,
                replays_read=capture.replays_read,
                graph_storages=capture.graph_storages,
            )
        )

    def _run(self, run: Run) -> None:
        kernel, args, capture = run.kernel, run.args, run.capture
        if not kernel.written:
            kernel.written = True
            kernel.find_roles()
            self.write(KernelLine(kernel.id, kernel.info))
        if not args.written:
            args.written = True
            self.write(ArgsLine(args.id, args.args()))
        if capture is not None and (
            capture.written is None or capture.foreign or capture.state is CaptureState.OPEN
        ):
            self.capture(capture)
        self.writes.seen(run)
        count = run.count  # once: its thread may be counting it up
        self.launches += count - run.written
        run.written = count
        self.write(
            LaunchLine(
                id=run.id,
                kernel=kernel.id,
                args=args.id,
                grid=_three(run.grid),
                outcome=run.outcome,
                stream=run.stream,
                device=run.device,
                thread=run.thread,
                time_ns=run.time_ns,
                count=count,
                phase=run.phase,
                mark=run.mark,
                capture=None if capture is None else capture.id,
                index=run.index,
                values=run.values,
                reason=run.reason,
                call_site=run.call_site,
            )
        )


def _three(grid: tuple[Any, ...]) -> tuple[int, int, int]:
    sizes = [int(size) for size in grid[:3]]
    sizes += [1] * (3 - len(sizes))
    return sizes[0], sizes[1], sizes[2]
