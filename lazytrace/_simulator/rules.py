"""What CUDA forbids while a stream captures, and what it does to the capture.

The rules are those measured on hardware: an operation that is not allowed raises in the thread
that tried it AND invalidates every capture that it offends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from enum import Enum
from typing import Any, NoReturn

import attrs
import torch

from lazytrace._simulator.memory import Pool

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
PREVIOUS_ERROR = "CUDA error: operation failed due to a previous error during capture"
CAPTURED_EVENT = (
    "CUDA error: operation not permitted on an event last recorded in a capturing stream"
)
ISOLATION = "CUDA error: dependency created on uncaptured work in another stream"
MERGE = "CUDA error: operation would result in a merge of separate capture sequences"
UNJOINED = "CUDA error: capturing stream has unjoined work"


def cuda_error(message: str, operation: str) -> RuntimeError:
    """The exception that torch raises for a CUDA error, naming the simulated call."""
    error_class = getattr(torch, "AcceleratorError", RuntimeError)
    error: RuntimeError = error_class(f"{message} [simulated: {operation}]")
    return error


class CaptureMode(str, Enum):
    """cudaStreamCaptureMode, of a capture or of a thread."""

    GLOBAL = "global"
    THREAD_LOCAL = "thread_local"
    RELAXED = "relaxed"


@attrs.define(eq=False)
class StreamState:
    """One stream: the capture it takes part in, and how far it has come in it.

    ``seen`` maps stream handles to the progress of that stream which this one waits for.
    """

    handle: int
    capture: Capture | None = None
    progress: int = 0
    seen: dict[int, int] = attrs.field(factory=dict)
    busy: bool = False

    def join(self, capture: Capture, seen: dict[int, int]) -> None:
        """Take part in a capture after the work in ``seen``."""
        if self.capture is None:
            self.capture = capture
            capture.streams.append(self)
        for handle, progress in seen.items():
            self.seen[handle] = max(progress, self.seen.get(handle, 0))

    def leave(self) -> None:
        """Stop capturing."""
        self.capture = None
        self.progress = 0
        self.seen = {}


@attrs.define(eq=False)
class Capture:
    """One capture in progress: from capture_begin to capture_end."""

    id: int
    graph: Any
    pool: Pool
    mode: CaptureMode
    origin: StreamState
    thread: int = attrs.field(factory=threading.get_ident)
    streams: list[StreamState] = attrs.field(factory=list)
    nodes: list[Any] = attrs.field(factory=list)
    error: str | None = None

    def __attrs_post_init__(self) -> None:
        self.origin.join(self, {})

    def add(self, stream: StreamState, node: Any) -> None:
        """Record a node on one of the capture's streams."""
        if self.error is not None:
            raise cuda_error(PREVIOUS_ERROR, self.error)
        stream.progress += 1
        stream.seen[stream.handle] = stream.progress
        self.nodes.append(node)

    def invalidate(self, operation: str) -> None:
        """Make capture_end fail; the first reason is kept."""
        self.error = self.error or operation

    def is_joined(self) -> bool:
        """Whether the stream that ends the capture waits for all its work."""
        seen = self.origin.seen
        return all(seen.get(stream.handle, 0) >= stream.progress for stream in self.streams)


@attrs.define(eq=False)
class CaptureRules:
    """The captures in progress, and the verdict on every call that may offend one."""

    open: list[Capture] = attrs.field(factory=list)
    _threads: threading.local = attrs.field(factory=threading.local)

    def exchange_mode(self, mode: CaptureMode) -> CaptureMode:
        """Set the calling thread's capture mode; returns the one it had."""
        previous: CaptureMode = getattr(self._threads, "mode", CaptureMode.GLOBAL)
        self._threads.mode = mode
        return previous

    def device_wide(self, operation: str) -> None:
        """A call that waits for the whole device: it breaks every capture in every mode."""
        self._refuse_any(list(self.open), operation)

    def unsafe(self, operation: str) -> None:
        """A call that CUDA holds to be potentially unsafe while a capture is in progress."""
        self._refuse_any(self._offended(), operation)

    def on_stream(self, stream: StreamState, operation: str) -> None:
        """A query of a stream or a wait for it."""
        if stream.capture is not None:
            self.refuse([stream.capture], operation)
        self.unsafe(operation)

    def on_event(self, recorded_in: Capture | None, operation: str) -> None:
        """A query of an event or a wait for it; ``recorded_in`` is its capture, if any."""
        if recorded_in is None:
            self.unsafe(operation)
        elif recorded_in in self.open:
            recorded_in.invalidate(operation)
            raise cuda_error(f"{NOT_PERMITTED} ({CAPTURED_EVENT})", operation)
        else:
            raise cuda_error(CAPTURED_EVENT, operation)

    def module_unload(self) -> None:
        """cuModuleUnload: invalidates without an exception, as it runs in a destructor."""
        for capture in self.open:
            if capture.thread == threading.get_ident() or capture.mode is CaptureMode.GLOBAL:
                capture.invalidate("cuModuleUnload")

    def refuse(
        self, captures: Iterable[Capture], operation: str, message: str = NOT_PERMITTED
    ) -> NoReturn:
        """Invalidate these captures and raise."""
        for capture in captures:
            capture.invalidate(operation)
        raise cuda_error(message, operation)

    def own(self) -> list[Capture]:
        """The captures that the calling thread began."""
        return [c for c in self.open if c.thread == threading.get_ident()]

    def _refuse_any(self, captures: list[Capture], operation: str) -> None:
        if captures:
            self.refuse(captures, operation)

    def _offended(self) -> list[Capture]:
        mode = getattr(self._threads, "mode", CaptureMode.GLOBAL)
        if mode is CaptureMode.RELAXED or not self.open:
            return []
        offended = [c for c in self.own() if c.mode is not CaptureMode.RELAXED]
        if mode is CaptureMode.GLOBAL:
            me = threading.get_ident()
            offended += [c for c in self.open if c.thread != me and c.mode is CaptureMode.GLOBAL]
        return offended
