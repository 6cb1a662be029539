"""CUDA as the tracer sees it: which streams capture, which are idle, and how values are read."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from threading import active_count, get_ident
from threading import enumerate as enumerate_threads
from typing import TYPE_CHECKING, Any

import attrs
import torch

from lazytrace._capture import opaque as _opaque
from lazytrace._device.cuda_bytes import ByteReader
from lazytrace._device.cuda_driver import CudaDriver, CudaError, MemoryKind
from lazytrace._device.runtime import ReadError, Stream
from lazytrace._device.torch_state import reading_refused
from lazytrace._probes.cuda import CudaProbes
from lazytrace._statistics import Region, reading_cost
from lazytrace._statistics.device_engine import DeviceEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazytrace._capture.views import TensorView
    from lazytrace.records import TensorStats

_POLL_S = 0.0005
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_SEVERAL = -1  # no thread has this identifier
_LEGACY = (0, 1)  # CU_STREAM_LEGACY and its default handle


@attrs.define
class _Device:
    """What a flush uses on one device; made at the first flush that needs it."""

    stream: int
    shadow: int  # a blocking stream: what is recorded on it follows the legacy default stream
    engine: DeviceEngine


@attrs.define
class CudaRuntime:
    """Implements lazytrace's Runtime on CUDA, through the driver alone.

    No call goes to the legacy default stream: that would invalidate a capture on any blocking
    stream, in every capture mode. It is asked through a blocking stream of ours, which waits for
    it. Any other stream is asked, by an event, only on the one thread that used it: to query a
    stream invalidates a capture that another thread has begun on it, and to record an event there
    corrupts one. A stream that torch does not own is never named outside the launch, for it may be
    destroyed. In all other cases only the program's own synchronisation proves work done.
    """

    driver: CudaDriver
    capturing: Callable[[int], bool]
    _users: dict[Stream, int] = attrs.field(factory=dict)  # the one thread, or _SEVERAL
    _devices: dict[int, _Device] = attrs.field(factory=dict)
    _bytes: ByteReader | None = None

    @classmethod
    def load(cls) -> CudaRuntime | None:
        """The process's one runtime, or None without CUDA's driver library. Creates no context.

        Its streams, workspaces and loaded kernels serve every tracer of the process.
        """
        return _load(os.getpid())

    # The capture side: host only

    def device_names(self) -> tuple[str, ...]:
        """The devices' names, once the program has initialised CUDA."""
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return ()
        return tuple(
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        )

    def current_device(self) -> int:
        """The calling thread's device."""
        return int(torch._C._cuda_getDevice())

    def current_stream(self, device: int) -> int:
        """The raw handle of torch's current stream."""
        return int(torch._C._cuda_getCurrentRawStream(device))

    def note_stream(self, device: int, stream: int) -> None:
        """Remembers which thread uses a stream of torch's own pool, which is never destroyed.

        torch's wrapper of another library's stream has the handle for its id.
        """
        if stream in _LEGACY:
            return
        thread = get_ident()
        user = self._users.get((device, stream))
        if user == thread:
            return
        if user is not None and (user == _SEVERAL or _is_alive(user)):
            self._users[device, stream] = _SEVERAL
            return
        stream_id = torch._C._cuda_getCurrentStream(device)[0]
        if stream == self.current_stream(device) and stream_id != stream:
            self._users[device, stream] = thread

    def capture_id(self, stream: int) -> int | None:
        """CUDA's id of the capture that the stream is part of."""
        return self.driver.capture_id(stream)

    def graph_ranges(self, graph: Any) -> list[tuple[int, int]] | None:
        """The segments of the graph's memory pool, from the allocator's snapshot."""
        pool = tuple(graph.pool())
        with _same_reference_counts(pool):
            segments = torch.cuda.memory_snapshot(pool)  # type: ignore[no-untyped-call]
        return [
            (segment["address"], segment["address"] + segment["total_size"])
            for segment in segments
            if tuple(segment.get("segment_pool_id", ())) == pool
        ]

    # The flush side

    def refusal(self) -> str | None:
        """Why this thread may not read values now."""
        refused = reading_refused()
        if refused is not None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return refused
        stream = self.current_stream(self.current_device())
        return "capturing" if stream and self.capturing(stream) else None

    def idle(self, streams: Collection[Stream], deadline: float | None) -> set[Stream]:
        """Those streams whose work is done; polls until the deadline if one is given."""
        try:
            return self._idle(streams, deadline)
        except CudaError as error:
            raise ReadError(str(error), sticky=True) from error

    def _idle(self, streams: Collection[Stream], deadline: float | None) -> set[Stream]:
        # The last thread of a program, about to end it, is every stream's only user.
        alone = deadline is not None and active_count() == 1
        allowed = (get_ident(), _SEVERAL) if alone else (get_ident(),)
        idle: set[Stream] = set()
        probes: dict[Stream, int] = {}
        try:
            for stream in streams:
                event = self._probe(*stream, allowed)
                if event is not None:
                    probes[stream] = event
            while True:
                for stream, event in list(probes.items()):
                    if self._passed(stream[0], event):
                        idle.add(stream)
                        self._drop(stream[0], probes.pop(stream))
                if not probes or deadline is None or time.monotonic() >= deadline:
                    return idle
                time.sleep(_POLL_S)
        finally:
            for stream, event in probes.items():
                self._drop(stream[0], event)

    def _probe(self, device: int, stream: int, allowed: Container[int]) -> int | None:
        """An event behind the stream's work; None if the stream must not be touched."""
        if stream not in _LEGACY and self._users.get((device, stream)) not in allowed:
            return None
        with self._on(device):
            target = self._device(device).shadow if stream in _LEGACY else stream
            return self.driver.event_behind(target)

    def _passed(self, device: int, event: int) -> bool:
        with self._on(device):
            return self.driver.event_passed(event)

    def _drop(self, device: int, event: int) -> None:
        with self._on(device):
            self.driver.event_destroy(event)

    def unreadable(self, view: TensorView) -> str | None:
        """Whether the memory is the host's or managed: neither is ever read."""
        if view.device_type != "cuda":
            return "host_memory"
        kind = self.driver.memory_kind(view.data_ptr)
        return "host_memory" if kind in (MemoryKind.HOST, MemoryKind.MANAGED) else None

    def cost(self, view: TensorView) -> int:
        """Bytes that reading the view touches."""
        return reading_cost(_region(view))

    def read(self, views: Sequence[TensorView]) -> list[TensorStats | Exception]:
        """Statistics by our own kernels, on our own stream, without torch's allocator."""
        results: list[TensorStats | Exception | None] = [None] * len(views)
        try:
            for index in sorted({view.device_index for view in views}):
                chosen = [i for i, view in enumerate(views) if view.device_index == index]
                with self._on(index):
                    device = self._device(index)
                    regions = [_region(views[i]) for i in chosen]
                    outcomes = device.engine.read(regions, device.stream)
                for i, outcome in zip(chosen, outcomes):
                    if isinstance(outcome, CudaError):
                        raise outcome
                    results[i] = outcome
        except CudaError as error:
            raise ReadError(str(error), sticky=error.code != _OUT_OF_MEMORY) from error
        return [outcome for outcome in results if outcome is not None]

    def read_bytes(self, view: TensorView, limit: int) -> bytes:
        """Bytes of device memory, through the driver and our own stream and buffer."""
        if self._bytes is None:
            self._bytes = ByteReader(self.driver)
        try:
            with self._on(view.device_index):
                stream = self._device(view.device_index).stream
                return self._bytes.read(view, limit, stream)
        except CudaError as error:
            raise ReadError(str(error), sticky=error.code != _OUT_OF_MEMORY) from error

    def launch_probes(self) -> CudaProbes:
        """Statistics kernels beside the program's own, with slots outside its allocator."""
        return CudaProbes(
            self.driver, self._initialized_device, self._on, self._own_stream, _region
        )

    def _initialized_device(self) -> int | None:
        is_initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return self.current_device() if is_initialized else None

    def _own_stream(self, index: int) -> int:
        return self._device(index).stream

    def _device(self, index: int) -> _Device:
        """The device's workspace; called with its context current."""
        device = self._devices.get(index)
        if device is None:
            device = self._devices[index] = _Device(
                self.driver.stream_create(),
                self.driver.stream_create(blocking=True),
                DeviceEngine(self.driver, index),
            )
        return device

    @contextmanager
    def _on(self, device: int) -> Iterator[None]:
        """The device's context, and relaxed capture mode, for this thread and this block."""
        with ExitStack() as stack:
            stack.enter_context(self.driver.context(device))
            stack.enter_context(self.driver.relaxed_capture_mode())
            yield


def _is_alive(thread: int) -> bool:
    """Whether a thread that Python knows has this identifier; streams outlive threads."""
    return any(known.ident == thread for known in enumerate_threads())


@contextmanager
def _same_reference_counts(numbers: Sequence[int]) -> Iterator[None]:
    """Keeps torch from freeing the pool's two numbers.

    memory_snapshot(pool), in torch 2.11, gives back references that it never took. That is seen
    only once an id exceeds 256: smaller integers are never freed.
    """
    held = [*numbers]  # so that none is freed before its references are given back
    before = _reference_counts(held)
    try:
        yield
    finally:
        after = _reference_counts(held)
        for position, number in enumerate(held):
            for _ in range(before[position] - after[position]):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(number))


def _reference_counts(numbers: Sequence[int]) -> list[int]:
    return [sys.getrefcount(number) for number in numbers]


@lru_cache(maxsize=1)
def _load(_pid: int) -> CudaRuntime | None:
    """By process: what a forked child inherits belongs to its parent's context."""
    driver = CudaDriver.load()
    return None if driver is None else CudaRuntime(driver, _capture_query(driver))


def _capture_query(driver: CudaDriver) -> Callable[[int], bool]:
    """Whether a stream is part of a capture, an invalidated one included.

    Nearly every launch goes to torch's current stream, and torch can be asked about that one for
    less than the driver through ctypes.
    """
    if not hasattr(torch._C, "_cuda_getCurrentRawStream"):
        return driver.is_capturing  # a CPU build of torch on a machine with CUDA
    device, current = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream
    current_is_capturing = torch._C._cuda_isCurrentStreamCapturing

    def capturing(stream: int) -> bool:
        if not stream:
            return False  # the legacy default stream cannot be captured, nor be asked
        if stream == current(device()):
            return bool(current_is_capturing())
        return driver.is_capturing(stream)

    return capturing


def _region(view: TensorView) -> Region:
    dtype = _opaque.dtype_name(view.dtype)
    return Region(view.data_ptr, view.shape, view.strides, dtype, view.element_size)
