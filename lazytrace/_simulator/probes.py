"""Probes of a simulated device: nodes that compute statistics of CPU memory when they run."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import torch

from lazytrace._capture import opaque as _opaque
from lazytrace._probes.seam import Probe, ProbeResult, ProbeViews
from lazytrace._simulator.memory import Block, Poison, Pool
from lazytrace._statistics import Region
from lazytrace._statistics.torch_engine import TorchEngine
from lazytrace.records import TensorStats

if TYPE_CHECKING:
    from lazytrace._capture.views import TensorView
    from lazytrace._simulator.device import Device
    from lazytrace._simulator.simulation import Simulation

NODE_NAME = "lazytrace_launch_statistics"


@attrs.frozen
class _Operand:
    """A view as a node knows it: a place in a block of memory, never the storage itself."""

    view: TensorView
    block: Block

    @classmethod
    def of(cls, view: TensorView, pool: Pool | None) -> _Operand:
        storage = None if view.ref is None else view.ref()
        if storage is None:
            return cls(view, Block(view.data_ptr, 0, None))
        if pool is None:
            return cls(view, Block(storage.data_ptr(), storage.nbytes(), None))
        return cls(view, Block.of(storage, pool))

    def memory(self, poison: Poison) -> tuple[Region, torch.UntypedStorage]:
        """The region to read now, and the storage it lies in."""
        start = self.block.resolve(poison)
        raw = (ctypes.c_char * self.block.nbytes).from_address(start)
        storage = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()
        view = self.view
        address = start + view.data_ptr - self.block.start
        dtype = _opaque.dtype_name(view.dtype)
        return Region(address, view.shape, view.strides, dtype, view.element_size), storage


@attrs.define(eq=False)
class SimulatedProbe:
    """One slot and, once placed, the node that refreshes it."""

    views: tuple[TensorView, ...]
    results: list[ProbeResult]

    def take_in(self, outcomes: Sequence[TensorStats | Exception]) -> None:
        """Updates the slot as one run of the node does."""
        self.results = [_next(*pair) for pair in zip(self.results, outcomes, strict=True)]


@attrs.frozen
class ProbeNode:
    """The captured node of a probe."""

    probe: SimulatedProbe
    operands: tuple[_Operand, ...]
    engine: TorchEngine

    @property
    def name(self) -> str:
        """The kernel's name on a real device."""
        return NODE_NAME

    def run(self, device: Device, poison: Poison) -> None:
        """Reads what the views hold now, from the memory that a replay sees."""
        if not device.execute:
            return
        with device.computing():
            memory = [operand.memory(poison) for operand in self.operands]
            self.probe.take_in(self.engine.read([m[0] for m in memory], [m[1] for m in memory]))


@attrs.define
class SimulatedProbes:
    """Implements LaunchProbes; ``simulation.probe_slots`` bounds the slots in use."""

    simulation: Simulation
    engine: TorchEngine = attrs.field(factory=TorchEngine)
    used: set[int] = attrs.field(factory=set)

    def prepare(self) -> str | None:
        """Nothing to load."""
        return None

    def take(self, views: ProbeViews, capture: int | None, device: int) -> Probe | str:
        """A slot, if one is left."""
        if len(self.used) >= self.simulation.probe_slots:
            return "no_slot"
        never = ProbeResult(0, None)
        probe = SimulatedProbe(views.views, [never] * len(views.views))
        self.used.add(id(probe))
        return probe

    def place(self, probe: Probe, stream: int) -> str | None:
        """Runs the probe at once, or records its node."""
        assert isinstance(probe, SimulatedProbe)
        device = self.simulation.device
        capture = device.stream(stream).capture
        pool = None if capture is None else capture.pool
        operands = tuple(_Operand.of(view, pool) for view in probe.views)
        node = ProbeNode(probe, operands, self.engine)
        device.count_launch()
        if capture is None:
            node.run(device, Poison())
            return None
        try:
            capture.add(device.stream(stream), node)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None

    def settle(self) -> str | None:
        """A node needs nothing but itself."""
        return None

    def grow(self) -> None:
        """The bound is fixed."""

    def read(self, probes: Sequence[Probe]) -> list[list[ProbeResult]]:
        """What the slots hold."""
        return [list(probe.results) for probe in probes if isinstance(probe, SimulatedProbe)]

    def release(self, probe: Probe) -> None:
        """Frees the slot."""
        self.used.discard(id(probe))

    def forget(self, capture: int) -> None:
        """Probes share nothing here."""

    def close(self) -> None:
        """There is nothing to free."""


def _next(before: ProbeResult, outcome: TensorStats | Exception) -> ProbeResult:
    runs = before.runs + 1
    if isinstance(outcome, Exception):
        return attrs.evolve(before, runs=runs, error=str(outcome))
    index = outcome.first_nonfinite_index
    if before.first_bad_run is None and index is not None:
        return ProbeResult(runs, outcome, None, runs, index)
    return attrs.evolve(before, runs=runs, stats=outcome)
