"""Puts the parts of a tracer together, and takes them apart."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections import Counter
from contextlib import ExitStack
from typing import cast

import attrs
import torch
import triton
from triton.runtime import driver

from lazytrace._capture import hooks as _hooks
from lazytrace._capture.containment import Containment
from lazytrace._capture.graphs import GraphWatch
from lazytrace._capture.kernels import KernelRegistry
from lazytrace._capture.patches import Patches
from lazytrace._capture.pending import Capture, PendingQueue
from lazytrace._capture.recorder import PhaseContext, Recorder
from lazytrace._device.cuda_runtime import CudaRuntime
from lazytrace._device.runtime import HostRuntime, Runtime
from lazytrace._probes.flush import ProbeFlusher
from lazytrace._probes.placing import Prober
from lazytrace._probes.reading import ProbeReader
from lazytrace._trace.ndjson import NDJSONSink, open_trace
from lazytrace._trace.sink import MemorySink, Sink
from lazytrace._values import problem_log as _problem_log
from lazytrace._values.blobs import BlobStore
from lazytrace._values.completion import Completion, Progress
from lazytrace._values.flush import Flusher, Trigger
from lazytrace._values.journal import Journal
from lazytrace._values.problem_log import ProblemLog
from lazytrace._values.reading import ViewReader
from lazytrace._values.sync import SyncWatch
from lazytrace._version import __version__
from lazytrace.config import Options
from lazytrace.errors import OutputError
from lazytrace.lines import SCHEMA_VERSION, EndLine, ProblemLine
from lazytrace.problems import Problem, in_launch_order
from lazytrace.records import Coverage, FlushResult, Session

_NOTES = {
    "replay": "flush_at='replay': values are read inside replay(); timings are not comparable",
    "at_launch": (
        "values='at_launch': statistics kernels run beside the program's own and serialise what "
        "would overlap; timings are not comparable, and a race can hide"
    ),
}


@attrs.define
class Assembly:
    """Everything that runs while one tracer is enabled in one process.

    ``open``, which build it, touches nothing of the program; ``install`` does, ``close`` undoes.
    """

    options: Options
    runtime: Runtime
    containment: Containment
    memory: MemorySink
    file: NDJSONSink | None
    session: Session
    patches: Patches
    queue: PendingQueue
    journal: Journal
    log: ProblemLog
    phase: PhaseContext
    completion: Completion
    recorder: Recorder = attrs.field(init=False)
    graphs: GraphWatch = attrs.field(init=False)
    flusher: Flusher = attrs.field(init=False)
    prober: Prober | None = attrs.field(init=False)
    closed: bool = False  # the program is as it was before
    ended: bool = False  # the trace has its last line

    @classmethod
    def open(cls, options: Options, *, child: bool = False) -> Assembly:
        """A new trace; OutputError if its file cannot be created. The session is on disk then."""
        runtime = _choose_runtime()
        memory = MemorySink(options.max_records)
        file = None
        if options.out is not None:
            file = open_trace(
                options.out,
                os.getpid(),
                socket.gethostname(),
                child=child,
                max_file_bytes=options.max_file_bytes,
            )
        queue = PendingQueue(options.max_pending)
        sinks: list[Sink] = [memory] if file is None else [memory, file]
        journal = Journal(queue, sinks)
        self = cls(
            options,
            runtime,
            Containment(),
            memory,
            file,
            _session(options, runtime),
            Patches(),
            queue,
            journal,
            ProblemLog(journal.write, options.on_problem == "warn"),
            PhaseContext(),
            Completion(),
        )
        journal.write(self.session)
        journal.commit()
        if file is not None and file.fault is not None:
            file.close()
            problem = f"cannot be written: {file.fault}"
            raise OutputError(str(file.path), problem, "make room, or give another path")
        return self

    def __attrs_post_init__(self) -> None:
        options = self.options
        self.graphs = GraphWatch(
            self.runtime, self.queue, self.containment, self._capture_ended, self._replayed
        )
        self.prober = self._prober()
        self.recorder = Recorder(
            options,
            self.runtime,
            self.queue,
            KernelRegistry(
                options.traces, None if self.prober else options.eager_samples, options.ir
            ),
            self.graphs,
            self.phase,
            self._write_point,
            self.file is not None,
            prober=self.prober,
        )
        self.flusher = self._flusher()

    def _flusher(self) -> Flusher:
        options = self.options
        parts = (
            self.runtime,
            self.queue,
            self.journal,
            self.completion,
            ViewReader(self.runtime, options.max_read_bytes, blobs=self._blobs()),
            self._progress,
            self._refusal,
            self.log.report,
            self._refresh_session,
            options.ignore,
        )
        if self.prober is None:
            return Flusher(*parts)
        reason = "values='at_launch' keeps no bytes" if options.save_tensors else None
        slots = ProbeReader(self.prober.probes, options.ignore, reason)
        return ProbeFlusher(*parts, prober=self.prober, slots=slots)

    def _prober(self) -> Prober | None:
        probes = self.runtime.launch_probes() if self.options.values == "at_launch" else None
        if probes is None:
            return None
        return Prober(self.runtime, probes, self.containment, self.graphs.thread_is_capturing)

    def _blobs(self) -> BlobStore | None:
        limit = self.options.save_tensors
        return BlobStore.beside(self.file.path, limit) if self.file and limit else None

    def install(self) -> None:
        """Patches Triton and torch; undone again if that fails half-way."""
        with ExitStack() as undo:
            undo.callback(self.patches.undo)
            _hooks.install(self.patches, self.recorder, self.phase, self.containment, self.prober)
            self.graphs.install(self.patches)
            SyncWatch(
                self.runtime,
                self.completion,
                self.containment,
                self._progress,
                self._synced,
                self._write_point,
            ).install(self.patches)
            undo.pop_all()
        if self.prober is not None:
            self.containment.run("start", self.prober.prepare)

    # Flush and write points

    def flush(self, trigger: Trigger, *, wait: bool = False, again: bool = False) -> FlushResult:
        """A flush on request."""
        return self.flusher.flush(trigger, wait=wait, again=again)

    def _synced(self) -> None:
        if self.options.flush_at == "sync" and self.flusher.due:
            self.flusher.flush(Trigger.SYNC)

    def _replayed(self, capture: Capture) -> None:
        if self.options.flush_at == "replay" and capture.replays == 1:
            self.flusher.flush(Trigger.REPLAY, wait=True)

    def _capture_ended(self, capture: Capture) -> None:
        if self.prober is not None:
            self.prober.settle()
        self._write_point()

    def _write_point(self) -> None:
        if not self.graphs.thread_is_capturing():
            self.flusher.write_point()

    def _progress(self) -> Progress:
        return Progress(self.recorder.last_id, self.graphs.replay_number)

    def _refusal(self) -> str | None:
        if self.graphs.thread_is_capturing():
            return "capturing"
        return self.runtime.refusal()

    def _refresh_session(self) -> None:
        """Writes a further session line when the rank, or the devices, have become known."""
        if self.session.rank is not None and self.session.devices:
            return
        rank, world_size = _rank()
        devices = self.session.devices or self.runtime.device_names()
        known = attrs.evolve(self.session, rank=rank, world_size=world_size, devices=devices)
        if known != self.session:
            self.session = known
            self.journal.write(known)

    # The end

    def close(self, trigger: Trigger) -> list[str]:
        """Undoes the patches, waits for and reads what is due, and ends the trace.

        While a capture is open the trace ends with that capture. Returns the names of attributes
        that another tool has wrapped since; ours pass through.
        """
        if self.closed:
            return []
        self.closed = True
        left = self.patches.undo()
        if self.graphs.finish_open(self.end):
            self.containment.run("last flush", self.flusher.write_point)
        else:
            self.containment.run("last flush", self._last_flush, trigger)
            self.end()
        return left

    def _last_flush(self, trigger: Trigger) -> None:
        self.flusher.flush(trigger, wait=True)

    def end(self) -> None:
        """Writes the last lines and closes the file."""
        if not self.ended:
            self.ended = True
            self.graphs.forget()
            self.containment.run("end of the trace", self._end)

    def _end(self) -> None:
        self.flusher.finish("tracer_closed", self._write_end)
        for sink in self.journal.sinks:
            sink.close()
        if self.prober is not None:
            self.prober.probes.close()

    def _write_end(self) -> None:
        if self.file is not None:  # memory answers with the counts as they are when it is asked
            for problem in self.counted_problems():
                self.file.write(ProblemLine(problem))
        self.journal.write(
            EndLine(
                time_ns=time.time_ns(),
                launches=self.journal.launches,
                replays=self.graphs.replay_number,
                dropped=self.dropped(),
                errors=dict(self.containment.faults),
            )
        )

    def problems(self) -> list[Problem]:
        """Every problem known so far, by launch."""
        return in_launch_order([*self.memory.problems, *self.counted_problems()])

    def coverage(self) -> Coverage:
        """How much of what the memory retains was looked at, and all that was dropped."""
        known = self.memory.coverage()
        return attrs.evolve(known, dropped={**known.dropped, **self.dropped()})

    def counted_problems(self) -> list[Problem]:
        """Problems that are counters: what was dropped, and our own contained faults."""
        containment = self.containment
        fault = None if self.file is None else self.file.fault
        return [
            *_problem_log.file_fault(fault),
            *_problem_log.dropped(self.dropped()),
            *_problem_log.tracer_errors(containment.faults, containment.last),
        ]

    def dropped(self) -> dict[str, int]:
        """What the trace lacks, by reason."""
        counts = Counter(self.memory.dropped)
        if self.queue.refused:
            counts["max_pending: values"] = self.queue.refused
        if self.prober is not None:
            for reason, count in self.prober.refused.items():
                counts[f"{reason}: values"] = count
        for kind, count in self.log.dropped.items():
            counts[f"max_problems: {kind}"] = count
        if self.flusher.reader.blobs is not None:
            counts.update(self.flusher.reader.blobs.dropped)
        if self.file is not None:
            counts.update(self.file.dropped)
        return dict(counts)


def _session(options: Options, runtime: Runtime) -> Session:
    notes = (options.flush_at, options.values)
    return Session(
        schema_version=SCHEMA_VERSION,
        lazytrace=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=str(triton.__version__),
        host=socket.gethostname(),
        pid=os.getpid(),
        argv=tuple(sys.argv),
        devices=runtime.device_names(),
        options=options.as_dict(),
        time_ns=time.time_ns(),
        monotonic_ns=time.monotonic_ns(),
        notes=tuple(_NOTES[note] for note in notes if note in _NOTES),
    )


def _rank() -> tuple[int | None, int | None]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None, None


def _choose_runtime() -> Runtime:
    """The runtime that the active Triton driver brings (the simulator's), CUDA's, or the host's."""
    # Looked up without touching `driver.active`, which would make a driver, and raise without one.
    held = vars(driver)
    active = held.get("_active") or held.get("active")
    brought = vars(active).get("lazytrace_runtime") if active is not None else None
    if brought is not None:
        return cast("Runtime", brought)
    # Not torch.cuda.is_available(): that would initialise CUDA, and a later fork would lose it.
    if torch.version.cuda is not None:
        runtime = CudaRuntime.load()
        if runtime is not None:
            return runtime
    return HostRuntime()
