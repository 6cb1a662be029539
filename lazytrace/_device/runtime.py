"""The device as the tracer sees it: an interface, and what stands in where there is none.

Nothing on the capture side of this interface does device work. The CUDA implementation is
`_cuda_runtime`; the simulator brings its own; without a device there is `HostRuntime`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from lazytrace.errors import LazytraceError

if TYPE_CHECKING:
    from lazytrace._capture.views import TensorView
    from lazytrace._probes.seam import LaunchProbes
    from lazytrace.records import TensorStats

Stream = tuple[int, int]  # device index, raw stream handle


class ReadError(LazytraceError):
    """The device refused a reading. ``sticky``: every later call will fail too."""

    def __init__(self, message: str, *, sticky: bool) -> None:
        self.sticky = sticky
        super().__init__(message)


class UnreadableBytes(LazytraceError):
    """The bytes of one view cannot be had; the message is the reason."""


class Runtime(Protocol):
    """What the tracer asks of a device."""

    def device_names(self) -> tuple[str, ...]:
        """One name per visible device."""

    def current_device(self) -> int:
        """The calling thread's device. Host only."""

    def current_stream(self, device: int) -> int:
        """The raw handle of the calling thread's current stream. Host only."""

    def note_stream(self, device: int, stream: int) -> None:
        """A launch or replay on this stream; called on the thread whose stream it is. Host only."""

    def capturing(self, stream: int) -> bool:
        """Whether the stream is part of a capture. Host only, on the hot path."""

    def capture_id(self, stream: int) -> int | None:
        """CUDA's id of the capture that the stream is part of. Host only."""

    def graph_ranges(self, graph: Any) -> list[tuple[int, int]] | None:
        """[start, end) of each segment of the graph's own pool; None if it cannot be asked."""

    def refusal(self) -> str | None:
        """Why this thread may not read values now (``capturing``); None if it may."""

    def idle(self, streams: Collection[Stream], deadline: float | None) -> set[Stream]:
        """Those streams whose submitted work is done.

        Waits for the others until ``deadline`` (seconds of time.monotonic) if one is given.
        ReadError if the device is lost.
        """

    def unreadable(self, view: TensorView) -> str | None:
        """Why the memory of a view must not be read (``host_memory``); None if it may be."""

    def cost(self, view: TensorView) -> int:
        """Bytes that reading the view touches."""

    def read(self, views: Sequence[TensorView]) -> list[TensorStats | Exception]:
        """Statistics of views whose storages are held alive by the caller.

        An exception in the list stands for that view alone; ReadError is raised when the device
        itself refused.
        """

    def read_bytes(self, view: TensorView, limit: int) -> bytes:
        """The first bytes of a view's elements, row-major: ``limit``, cut to whole elements.

        The caller holds the storage alive. UnreadableBytes stands for this view alone; ReadError
        is raised when the device itself refused.
        """

    def launch_probes(self) -> LaunchProbes | None:
        """What runs statistics at the launches themselves; None where there is no device."""


class HostRuntime:
    """A device that only torch knows, or none: launches are described, no value is read."""

    def device_names(self) -> tuple[str, ...]:
        """None are asked for."""
        return ()

    def current_device(self) -> int:
        """Device 0."""
        return 0

    def current_stream(self, device: int) -> int:
        """The default stream."""
        return 0

    def note_stream(self, device: int, stream: int) -> None:
        """Nothing is remembered."""

    def capturing(self, stream: int) -> bool:
        """What torch says of its current stream; where it cannot say, nothing is captured."""
        try:
            return bool(torch.cuda.is_current_stream_capturing())
        except (AttributeError, RuntimeError, AssertionError):
            return False  # a CPU build, or a torch from before CUDA graphs

    def capture_id(self, stream: int) -> int | None:
        """Unknown without CUDA's driver."""
        return None

    def graph_ranges(self, graph: Any) -> list[tuple[int, int]] | None:
        """Unknown without CUDA's driver."""
        return None

    def refusal(self) -> str | None:
        """No reading is possible."""
        return "no_device"

    def idle(self, streams: Collection[Stream], deadline: float | None) -> set[Stream]:
        """None is known to be."""
        return set()

    def unreadable(self, view: TensorView) -> str | None:
        """Host memory is never read."""
        return "host_memory"

    def cost(self, view: TensorView) -> int:
        """Nothing is read."""
        return 0

    def read(self, views: Sequence[TensorView]) -> list[TensorStats | Exception]:
        """Nothing can be read."""
        raise ReadError("there is no CUDA device", sticky=True)

    def read_bytes(self, view: TensorView, limit: int) -> bytes:
        """Nothing can be read."""
        raise ReadError("there is no CUDA device", sticky=True)

    def launch_probes(self) -> LaunchProbes | None:
        """There is no device."""
        return None
