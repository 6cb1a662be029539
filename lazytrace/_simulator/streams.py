"""The simulated torch.cuda streams and events."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any

import torch

from lazytrace._simulator.device import Device
from lazytrace._simulator.driver import active_device
from lazytrace._simulator.rules import ISOLATION, MERGE, Capture, StreamState

_CUDA_DEVICE = ("cuda", 0)


class StreamBase:
    """Stands in for torch._C._CudaStreamBase."""

    def __init__(
        self, device: Any = None, priority: int = 0, *, stream_ptr: int | None = None, **_: Any
    ) -> None:
        owner = active_device()
        self._owner: Device = owner
        self._state: StreamState = (
            owner.new_stream() if stream_ptr is None else owner.stream(stream_ptr)
        )
        self._previous: list[StreamState] = []
        self.priority = priority

    @property
    def cuda_stream(self) -> int:
        """The stream's handle."""
        return self._state.handle

    @property
    def stream_id(self) -> int:
        """The stream's handle again."""
        return self._state.handle

    @property
    def device(self) -> torch.device:
        """cuda:0."""
        return torch.device(*_CUDA_DEVICE)

    @property
    def device_index(self) -> int:
        """0."""
        return 0

    def query(self) -> bool:
        """Whether the stream is idle."""
        self._owner.rules.on_stream(self._state, "cudaStreamQuery")
        return not self._state.busy

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._owner.rules.on_stream(self._state, "cudaStreamSynchronize")
        self._state.busy = False

    def __enter__(self) -> StreamBase:
        self._previous.append(self._owner.current_stream)
        self._owner.set_current_stream(self._state)
        return self

    def __exit__(self, *_: object) -> None:
        self._owner.set_current_stream(self._previous.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamBase) and other._state is self._state

    def __hash__(self) -> int:
        return hash((self.cuda_stream, self.device))


class Stream(StreamBase):
    """Stands in for torch.cuda.Stream; its methods are Python's, as there."""

    def query(self) -> bool:
        """Whether all work submitted to the stream is done."""
        return super().query()

    def synchronize(self) -> None:
        """Wait for all work submitted to the stream."""
        super().synchronize()

    def wait_event(self, event: Event) -> None:
        """Make work submitted from now on wait for an event."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Make work submitted from now on wait for another stream."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one by default, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """Stands in for torch.cuda.ExternalStream."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        super().__init__(device, stream_ptr=stream_ptr, **kwargs)


class Event:
    """Stands in for torch.cuda.Event."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._owner = active_device()
        self._time_ms: float | None = None
        self._stream: StreamState | None = None
        self._capture: Capture | None = None
        self._seen: dict[int, int] = {}
        self._timing = enable_timing

    def record(self, stream: Stream | None = None) -> None:
        """Record the event on a stream, the current one by default."""
        state = self._owner.current_stream if stream is None else stream._state
        self._stream = state
        self._capture = state.capture
        self._seen = {**state.seen, state.handle: state.progress}
        self._time_ms = self._owner.now_ms()

    def wait(self, stream: Stream | None = None) -> None:
        """Make a stream, the current one by default, wait for the event."""
        if self._stream is None:
            return  # CUDA takes an event that was never recorded for one that has happened
        state = self._owner.current_stream if stream is None else stream._state
        rules = self._owner.rules
        if self._capture is not None and self._capture in rules.open:
            if state.capture not in (None, self._capture):
                both = [c for c in (state.capture, self._capture) if c is not None]
                rules.refuse(both, "cudaStreamWaitEvent", MERGE)
            state.join(self._capture, self._seen)
        elif state.capture is not None:
            rules.refuse([state.capture], "cudaStreamWaitEvent", ISOLATION)

    def query(self) -> bool:
        """Whether the work before the event is done."""
        self._owner.rules.on_event(self._capture, "cudaEventQuery")
        return self._stream is None or not self._stream.busy

    def synchronize(self) -> None:
        """Wait for the event."""
        self._owner.rules.on_event(self._capture, "cudaEventSynchronize")

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of the device's clock between two events."""
        for event in (self, end_event):
            self._owner.rules.on_event(event._capture, "cudaEventElapsedTime")
        if self._time_ms is None or end_event._time_ms is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return end_event._time_ms - self._time_ms


class StreamContext:
    """Stands in for torch.cuda.StreamContext, which torch.cuda.stream() returns."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__()


class DeviceContext:
    """Stands in for torch.cuda.device: there is one device."""

    def __init__(self, device: Any = None) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        """Nothing to switch."""

    def __exit__(self, *_: object) -> None:
        """Nothing to switch back."""
