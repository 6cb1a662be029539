"""The simulated device as the tracer reads it: statistics of CPU tensors."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from lazytrace._capture import opaque as _opaque
from lazytrace._device.runtime import Stream
from lazytrace._device.torch_state import reading_refused
from lazytrace._simulator.probes import SimulatedProbes
from lazytrace._statistics import Region, reading_cost
from lazytrace._statistics.torch_engine import TorchEngine
from lazytrace._values.view_bytes import blocks

if TYPE_CHECKING:
    from lazytrace._capture.views import TensorView
    from lazytrace._probes.seam import LaunchProbes
    from lazytrace._simulator.simulation import Simulation
    from lazytrace.records import TensorStats

_POLL_S = 0.001


@attrs.frozen
class SimulatedRuntime:
    """Implements lazytrace's Runtime for a simulation; a CPU tensor is device memory here."""

    simulation: Simulation
    engine: TorchEngine = attrs.field(factory=TorchEngine)

    def device_names(self) -> tuple[str, ...]:
        """The one simulated device."""
        return ("simulated NVIDIA device",)

    def current_device(self) -> int:
        """There is one device."""
        return 0

    def current_stream(self, device: int) -> int:
        """The calling thread's current stream."""
        return self.simulation.current_stream_handle()

    def note_stream(self, device: int, stream: int) -> None:
        """Nothing: simulated streams can always be asked."""

    def capturing(self, stream: int) -> bool:
        """Whether the stream is part of a capture, an invalidated one included."""
        return stream != 0 and self.simulation.stream_capturing(stream)

    def capture_id(self, stream: int) -> int | None:
        """The id of the capture that the stream is part of."""
        return self.simulation.capture_id(stream)

    def graph_ranges(self, graph: Any) -> list[tuple[int, int]] | None:
        """The buffers that the graph's pool owns."""
        return self.simulation.graph_ranges(graph)

    def refusal(self) -> str | None:
        """Why this thread may not read: its current stream captures, or tensors are not real."""
        if self.simulation.stream_capturing(self.simulation.current_stream_handle()):
            return "capturing"
        return reading_refused()

    def idle(self, streams: Collection[Stream], deadline: float | None) -> set[Stream]:
        """The streams that no ``busy()`` block holds."""
        idle = {stream for stream in streams if self.simulation.stream_idle(stream[1])}
        while deadline is not None and len(idle) < len(streams) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            idle = {stream for stream in streams if self.simulation.stream_idle(stream[1])}
        return idle

    def unreadable(self, view: TensorView) -> str | None:
        """Nothing: all memory is host memory here."""
        return None

    def cost(self, view: TensorView) -> int:
        """Bytes that reading the view touches."""
        return reading_cost(_region(view))

    def read(self, views: Sequence[TensorView]) -> list[TensorStats | Exception]:
        """Statistics through torch, on the CPU."""
        storages: list[Any] = [None if view.ref is None else view.ref() for view in views]
        return self.engine.read([_region(view) for view in views], storages)

    def read_bytes(self, view: TensorView, limit: int) -> bytes:
        """Bytes of the CPU storage that the caller has found to hold the view."""
        return b"".join(
            ctypes.string_at(block.address + row * block.pitch, block.width)
            for block in blocks(view, limit)
            for row in range(block.rows)
        )

    def launch_probes(self) -> LaunchProbes:
        """Nodes of the simulated graphs."""
        return SimulatedProbes(self.simulation, self.engine)


def _region(view: TensorView) -> Region:
    dtype = _opaque.dtype_name(view.dtype)
    return Region(view.data_ptr, view.shape, view.strides, dtype, view.element_size)
