"""The tracer that enable() returns, and the one that is active in this process."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from lazytrace._assembly import Assembly
from lazytrace._values.flush import Trigger
from lazytrace.config import Options
from lazytrace.problems import Problem
from lazytrace.records import Coverage, FlushResult, LaunchRecord

_log = logging.getLogger("lazytrace")


@attrs.define(eq=False)
class Tracer:
    """Traces every Triton launch of this process until it is disabled.

    After that it answers from memory.
    """

    options: Options
    _assembly: Assembly

    @classmethod
    def start(cls, options: Options) -> Tracer:
        """An enabled tracer; OutputError if its file cannot be created."""
        assembly = Assembly.open(options)
        assembly.install()
        tracer = cls(options, assembly)
        atexit.register(tracer._at_exit)
        return tracer

    @property
    def path(self) -> Path | None:
        """The trace file, or None if the trace is in memory only."""
        file = self._assembly.file
        return None if file is None else file.path

    @property
    def enabled(self) -> bool:
        """Whether launches are being recorded."""
        return not self._assembly.closed

    def records(
        self,
        kernel: str | Iterable[str] | None = None,
        *,
        captured: bool | None = None,
        expand: bool = False,
    ) -> list[LaunchRecord]:
        """The launches so far, oldest first; reads first what is due and done.

        ``kernel`` is an fnmatch pattern or a list of them, ``captured`` selects launches in or
        out of graph captures, ``expand`` gives a run of identical launches one record each.
        """
        self._read_what_is_due()
        return self._assembly.memory.records(kernel, captured=captured, expand=expand)

    def problems(self) -> list[Problem]:
        """What is wrong with the program as far as it was seen; reads first what is due.

        In the order of the launches that they name, which in a graph is that of its capture;
        those that name none are last. One for each kind, launch and argument, and at most 1,000 of
        a kind: the rest is counted in a problem of the kind ``dropped``.
        """
        self._read_what_is_due()
        return self._assembly.problems()

    def coverage(self) -> Coverage:
        """How much of what ran was looked at; reads first what is due.

        Counts the launches that ``records()`` would give: replays read of replays run, and tensor
        arguments by what became of their values, each once for each run of launches.
        """
        self._read_what_is_due()
        return self._assembly.coverage()

    def flush(self, *, wait: bool = False, again: bool = False) -> FlushResult:
        """Reads what is due. Never raises for the device's sake.

        ``wait``: also waits, at most ten seconds, for work that is still running. ``again``: reads
        captured launches once more, as their graph's latest replay left them.
        """
        if self._assembly.closed:
            return FlushResult(0, 0, "the tracer is disabled")
        result = self._assembly.containment.run("flush", self._flush, wait, again)
        return FlushResult(0, 0, "a fault of lazytrace") if result is None else result

    def _flush(self, wait: bool, again: bool) -> FlushResult:
        return self._assembly.flush(Trigger.REQUEST, wait=wait, again=again)

    def _read_what_is_due(self) -> None:
        if not self._assembly.closed:
            self.flush()

    def disable(self) -> None:
        """Restores what was patched, reads what is due (waiting for it), and ends the trace."""
        self._close(Trigger.REQUEST)

    def _at_exit(self) -> None:
        self._close(Trigger.EXIT)

    def _close(self, trigger: Trigger) -> None:
        left = self._assembly.close(trigger)
        if trigger is Trigger.EXIT:
            self._assembly.end()
        if self._assembly.ended:
            atexit.unregister(self._at_exit)
        if left:
            _log.warning(
                "lazytrace: another tool has wrapped %s since; lazytrace's part of it stays "
                "beneath, and passes every call through",
                ", ".join(left),
            )

    def mark(self, label: str | None) -> None:
        """Labels the launches that follow."""
        self._assembly.recorder.mark = label
        self._assembly.queue.renew_token()

    def name_graph(self, graph: Any, name: str) -> None:
        """Names a graph in every record of its launches, also of those already captured."""
        self._assembly.graphs.name(graph, name)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is recorded in the block, on any thread."""
        self._assembly.recorder.paused += 1
        self._assembly.queue.renew_token()
        try:
            yield
        finally:
            self._assembly.recorder.paused -= 1  # a forked child's own recorder by now, perhaps

    def after_fork(self) -> None:
        """In a forked child: a trace of its own, nothing of the parent's."""
        if self._assembly.closed:
            return
        parent = self._assembly
        parent.patches.undo()
        self._assembly = Assembly.open(self.options, child=True)
        self._assembly.recorder.mark = parent.recorder.mark
        self._assembly.recorder.paused = parent.recorder.paused
        self._assembly.install()


@attrs.define
class Active:
    """The tracer that is active, or was last: patches are process-wide, and so is this."""

    tracer: Tracer | None = None
    _fork_handler: bool = False

    def disable(self) -> None:
        """Disables the tracer if one is active."""
        if self.tracer is not None and self.tracer.enabled:
            self.tracer.disable()

    def watch_forks(self) -> None:
        """Registers, once per process, what a forked child does; it cannot be unregistered."""
        if not self._fork_handler:
            self._fork_handler = True
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        tracer = self.tracer
        if tracer is None or not tracer.enabled:
            return
        try:
            tracer.after_fork()
        except OSError as error:
            _log.warning("lazytrace: a forked child is not traced: %s", error)
