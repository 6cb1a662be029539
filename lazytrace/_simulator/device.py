"""The simulated device: streams, the thread's state, launches, captures and the clock."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
from torch.utils._python_dispatch import _disable_current_modes

from lazytrace._simulator.guards import DispatchGuard, HostReadGuard
from lazytrace._simulator.interpreter import Interpreter, Kernel
from lazytrace._simulator.memory import Poison, Pool, PoolId
from lazytrace._simulator.nodes import KernelNode, LightNode, Node, pointers_of
from lazytrace._simulator.rules import (
    PREVIOUS_ERROR,
    UNJOINED,
    Capture,
    CaptureMode,
    CaptureRules,
    StreamState,
    cuda_error,
)

_FIRST_HANDLE = 0x7F0000001000


class _ThreadState(threading.local):
    stream: StreamState | None = None
    hook_depth: int = 0
    guard: DispatchGuard | None = None
    guarded_captures: int = 0
    computing: int = 0


@attrs.define(eq=False)
class Device:
    """The one device of a simulation.

    ``kernel_ms`` is what a user's kernel adds to the virtual clock (None: the wall clock counts);
    ``launches`` counts submitted Triton launches, lazytrace's own ones included.
    """

    arch: int
    execute: bool
    kernel_ms: float | None
    strict_hooks: bool = True
    launches: int = 0
    clock_ms: float = 0.0
    rules: CaptureRules = attrs.field(factory=CaptureRules)
    interpreter: Interpreter = attrs.field(factory=Interpreter)
    default_stream: StreamState = attrs.field(factory=lambda: StreamState(0))
    streams: dict[int, StreamState] = attrs.field(init=False)
    pools: weakref.WeakValueDictionary[PoolId, Pool] = attrs.field(
        factory=weakref.WeakValueDictionary
    )
    _lock: threading.RLock = attrs.field(factory=threading.RLock)
    _numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    _thread: _ThreadState = attrs.field(factory=_ThreadState)
    _host_reads: HostReadGuard = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.streams = {0: self.default_stream}
        self._host_reads = HostReadGuard(self)

    # Streams

    @property
    def current_stream(self) -> StreamState:
        """The calling thread's current stream."""
        return self._thread.stream or self.default_stream

    def set_current_stream(self, stream: StreamState) -> None:
        """Make a stream the calling thread's current one."""
        self._thread.stream = stream

    def new_stream(self) -> StreamState:
        """A stream with a handle of its own."""
        return self.stream(_FIRST_HANDLE + 16 * next(self._numbers))

    def stream(self, handle: int) -> StreamState:
        """The stream of a handle, which another library may have made."""
        return self.streams.setdefault(handle, StreamState(handle))

    # Time

    def now_ms(self) -> float:
        """The device's time in milliseconds."""
        return time.perf_counter() * 1e3 if self.kernel_ms is None else self.clock_ms

    def tick(self, kernel: Kernel) -> None:
        """A kernel has run."""
        if self.kernel_ms is not None and kernel.timed:
            with self._lock:
                self.clock_ms += self.kernel_ms

    # Launches

    def submit(
        self, kernel: Kernel, light: LightNode, grid: tuple[int, int, int], handle: int, args: Any
    ) -> None:
        """One launch: run at once, or recorded if its stream is capturing."""
        self.count_launch()
        stream = self.streams.get(handle) or self.stream(handle)
        capture = stream.capture
        if capture is None:
            self.run_kernel(kernel, grid, args)
        elif self.execute:
            capture.add(stream, KernelNode(kernel, grid, pointers_of(args, capture.pool)))
        else:
            capture.add(stream, light)

    def count_launch(self) -> None:
        """A Triton launch was submitted."""
        with self._lock:
            self.launches += 1

    @contextmanager
    def computing(self) -> Iterator[None]:
        """In the block the calling thread does the device's own work, to which no rule applies."""
        thread = self._thread
        thread.computing += 1
        try:
            with _disable_current_modes():
                yield
        finally:
            thread.computing -= 1

    def run_kernel(self, kernel: Kernel, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
        """Run a kernel to its end."""
        if self.execute:
            with _disable_current_modes():
                self.interpreter.run(kernel, grid, args)
        self.tick(kernel)

    def replay(self, nodes: Sequence[Node]) -> None:
        """Run a graph's nodes in the order in which they were recorded."""
        poison = Poison()
        with _disable_current_modes():
            for node in nodes:
                node.run(self, poison)

    def call_hook(self, hook: Callable[[Any], object], launch_metadata: Any) -> None:
        """Call one of Triton's launch hooks, marked as such for the rules."""
        thread = self._thread
        thread.hook_depth += 1
        try:
            hook(launch_metadata)
        finally:
            thread.hook_depth -= 1

    # Rules that need the thread's state

    def host_read(self, operation: str, *_: Any, **__: Any) -> None:
        """A copy to the host that the calling thread waits for."""
        if not self.rules.open or self._thread.computing:
            return
        self.refuse_in_strict_region(operation)
        self.rules.on_stream(self.current_stream, operation)

    def refuse_in_strict_region(self, operation: str) -> None:
        """Refuse an operation in a hook of a capturing thread, if hooks are held to that rule."""
        if self._thread.hook_depth and self.strict_hooks:
            own = self.rules.own()
            if own:
                self.rules.refuse(own, f"{operation} in a launch hook")

    # Captures

    def new_pool_id(self, *, shared: bool) -> PoolId:
        """An id for a memory pool: of torch.cuda.graph_pool_handle(), or of one graph."""
        number = next(self._numbers)
        return (0, number) if shared else (number, 0)

    def pool(self, pool_id: PoolId) -> Pool:
        """The living pool of this id, or a new one."""
        with self._lock:
            pool = self.pools.get(pool_id)
            if pool is None:
                pool = self.pools[pool_id] = Pool(pool_id)
            return pool

    def begin_capture(self, graph: Any, pool: Pool, mode: CaptureMode) -> Capture:
        """Start recording what is submitted to the current stream."""
        stream = self.current_stream
        if stream is self.default_stream:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.)"
            )
        if stream.capture is not None:
            self.rules.refuse([stream.capture], "cudaStreamBeginCapture")
        with self._lock:
            capture = Capture(next(self._numbers), graph, pool, mode, stream)
            self.rules.open.append(capture)
            if len(self.rules.open) == 1:
                self._host_reads.install()
        self._guard_thread()
        return capture

    def end_capture(self, capture: Capture) -> None:
        """Stop recording; raises if the capture was invalidated or left work unjoined."""
        if self.current_stream is not capture.origin:
            raise RuntimeError("Capture must end on the same stream it began on.")
        joined = capture.is_joined()
        self.abandon_capture(capture)
        if capture.error is not None:
            raise cuda_error(PREVIOUS_ERROR, capture.error)
        if not joined:
            raise cuda_error(UNJOINED, "cudaStreamEndCapture")

    def abandon_capture(self, capture: Capture) -> None:
        """Take a capture off its streams and its thread."""
        with self._lock:
            self.rules.open.remove(capture)
            for stream in capture.streams:
                stream.leave()
            if not self.rules.open:
                self._host_reads.remove()
        self._release_thread()

    def _guard_thread(self) -> None:
        thread = self._thread
        if thread.guard is None:
            thread.guard = DispatchGuard(self)
            thread.guard.__enter__()  # type: ignore[no-untyped-call]  # torch's is untyped
        thread.guarded_captures += 1

    def _release_thread(self) -> None:
        thread = self._thread
        if thread.guard is None:  # ended by another thread than began it: the guard stays idle
            return
        thread.guarded_captures -= 1
        if thread.guarded_captures == 0:
            guard, thread.guard = thread.guard, None
            guard.__exit__(None, None, None)  # type: ignore[no-untyped-call]
