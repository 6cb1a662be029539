"""Probes on CUDA: one statistics kernel on the launch's own stream, its slots in our own memory."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import attrs

from lazytrace._capture.views import TensorView
from lazytrace._device.cuda_driver import CudaError
from lazytrace._device.runtime import ReadError
from lazytrace._probes.seam import Probe, ProbeResult, ProbeViews
from lazytrace._probes.slots import CHUNK_BYTES, Driver, SlotBlock, Slots
from lazytrace._statistics import Region
from lazytrace._statistics.launch_plan import (
    PARTIAL_WORDS,
    LaunchPlan,
    SlotReading,
    decode_slots,
    plan_launch,
)
from lazytrace._statistics.plan import WORD_BYTES
from lazytrace.records import TensorStats

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


@attrs.define(eq=False)
class CudaProbe:
    """One slot: its plan, its block of memory, and what it shares with its capture or stream.

    ``ready`` tells whether what the kernel reads has been copied to the device; ``lost`` whether
    a copy may still be on its way into a block that no kernel will read.
    """

    views: tuple[TensorView, ...]
    plan: LaunchPlan
    device: int
    capture: int | None
    block: SlotBlock | None
    ready: bool = False
    lost: bool = False


@attrs.define
class _Device:
    """What the probes of one device use. ``scratch`` by capture and stream.

    Probes on one stream, eager or in one capture, run one after the other: they share memory for
    partial results.
    """

    slots: Slots
    engine: Any
    scratch: dict[tuple[int | None, int], SlotBlock] = attrs.field(factory=dict)


@cache
def _launch_engine(device: int) -> Any:
    """The kernels of a device, for as long as the process: a graph may outlive its tracer.

    From Triton 3.8 on a compiled kernel that dies takes its code off the device.
    """
    # Imported late: it brings the kernels, which nothing but a device needs.
    from lazytrace._statistics.launch_engine import LaunchEngine

    return LaunchEngine()


@attrs.define
class CudaProbes:
    """Implements LaunchProbes through the driver alone, in memory of our own.

    ``current`` is the calling thread's device, None while the program has not initialised CUDA.
    ``on`` makes a device current for a block, in relaxed capture mode; ``stream`` is our own
    stream there, and ``region`` what a view is to the statistics.
    """

    driver: Driver
    current: Callable[[], int | None]
    on: Callable[[int], AbstractContextManager[None]]
    stream: Callable[[int], int]
    region: Callable[[TensorView], Region]
    engine: Callable[[int], Any] = _launch_engine
    most_bytes: int = 128 << 20
    _devices: dict[int, _Device] = attrs.field(factory=dict)
    _taken: set[int] = attrs.field(factory=set)  # the identities of probes that have a block
    _unsettled: deque[CudaProbe] = attrs.field(factory=deque)
    _settling: threading.RLock = attrs.field(factory=threading.RLock)
    _plans: weakref.WeakKeyDictionary[ProbeViews, LaunchPlan] = attrs.field(
        factory=weakref.WeakKeyDictionary
    )

    # Outside captures

    def prepare(self) -> str | None:
        """Memory and kernels of the current device, once the program has initialised CUDA."""
        index = self.current()
        if index is None:
            return "not_prepared"
        if index in self._devices:
            return None
        try:
            with self.on(index):
                slots = Slots(self.driver, self.stream(index), self.most_bytes)
                slots.grow()
                engine = self.engine(index)
                engine.prepare()
        except (CudaError, RuntimeError) as error:
            return _line(error)
        self._devices[index] = _Device(slots, engine)
        return None

    def grow(self) -> None:
        """Takes back what was released, and grows where less than half is left."""
        for index, device in list(self._devices.items()):
            try:
                with self.on(index):
                    device.slots.clean()
                    if device.slots.is_low:
                        device.slots.grow()
            except CudaError:
                continue  # a launch that finds no slot says so

    def settle(self) -> str | None:
        """Copies the rows of captured probes to where their nodes will look for them.

        Also those of other threads' captures: a thread whose probes are being copied waits for it.
        """
        with self._settling:
            return self._settle()

    def _settle(self) -> str | None:
        probes = [self._unsettled.popleft() for _ in range(len(self._unsettled))]
        try:
            for index in {probe.device for probe in probes}:
                slots = self._devices[index].slots
                with self.on(index):
                    for probe in probes:
                        if probe.device == index and probe.block is not None:
                            slots.upload(probe.block, probe.plan.image, slots.stream)
                    self.driver.stream_synchronize(slots.stream)
                for probe in probes:
                    probe.ready = probe.ready or probe.device == index
        except CudaError as error:
            return str(error)
        return None

    # At a launch

    def take(self, views: ProbeViews, capture: int | None, device: int) -> Probe | str:
        """A block for one probe; ``no_slot`` if there is none, ``not_prepared`` on a new device."""
        held = self._devices.get(device)
        if held is None:
            return "not_prepared"
        plan = self._plan(views)
        if not plan.rows:
            return CudaProbe(views.views, plan, device, capture, None, ready=True)
        block = held.slots.take(plan.partials_offset)
        if block is None:
            return "no_slot"
        probe = CudaProbe(views.views, plan, device, capture, block, ready=bool(plan.inline))
        self._taken.add(id(probe))
        return probe

    def _plan(self, views: ProbeViews) -> LaunchPlan:
        plan = self._plans.get(views)
        if plan is None:
            plan = plan_launch([self.region(view) for view in views.views])
            if plan.rows:
                room = CHUNK_BYTES // (PARTIAL_WORDS * WORD_BYTES * plan.rows)
                plan = attrs.evolve(plan, programs=max(1, min(plan.programs, room)))
            self._plans[views] = plan
        return plan

    def place(self, probe: Probe, stream: int) -> str | None:
        """Launches the kernel on the stream; where that captures, what it reads is copied later."""
        assert isinstance(probe, CudaProbe)
        if probe.block is None:
            return None
        held = self._devices[probe.device]
        scratch = self._scratch(held, probe.capture, stream)
        if scratch is None:
            return "no_slot"
        address = probe.block.device
        plan = attrs.evolve(probe.plan, partials_offset=scratch.device - address)
        try:
            if not probe.ready:
                if probe.capture is not None:
                    self._unsettled.append(probe)
                else:
                    probe.lost = True
                    held.slots.upload(probe.block, plan.image, stream)
                    probe.ready = True
            held.engine.launch(plan, address, stream)
        except (CudaError, RuntimeError) as error:
            return _line(error)
        probe.lost = False
        return None

    def _scratch(self, held: _Device, capture: int | None, stream: int) -> SlotBlock | None:
        key = (capture, stream)
        scratch = held.scratch.get(key)
        if scratch is None:
            scratch = held.slots.take(CHUNK_BYTES)
            if scratch is not None:
                held.scratch[key] = scratch
        return scratch

    # At a flush

    def read(self, probes: Sequence[Probe]) -> list[list[ProbeResult]]:
        """Copies the slots to the host and decodes them."""
        found: dict[int, list[ProbeResult]] = {}
        mine = [probe for probe in probes if isinstance(probe, CudaProbe)]
        try:
            for index in sorted({probe.device for probe in mine}):
                chosen = [p for p in mine if p.device == index and p.block is not None]
                parts = [
                    p.block.part(p.plan.slots_offset, p.plan.slot_bytes)
                    for p in chosen
                    if p.block is not None
                ]
                with self.on(index):
                    held = self._devices[index].slots.read(parts)
                for probe, slots in zip(chosen, held):
                    found[id(probe)] = _results(probe, slots)
        except CudaError as error:
            raise ReadError(str(error), sticky=error.code != _OUT_OF_MEMORY) from error
        return [found.get(id(probe)) or _results(probe, b"") for probe in mine]

    def release(self, probe: Probe) -> None:
        """Gives the block back, unless something may still be written to it."""
        assert isinstance(probe, CudaProbe)
        block, probe.block = probe.block, None
        if block is not None and not probe.lost:
            self._taken.discard(id(probe))
            self._devices[probe.device].slots.release(block)

    def forget(self, capture: int) -> None:
        """Gives back what the capture's probes kept their partial results in."""
        for held in self._devices.values():
            for key in [key for key in held.scratch if key[0] == capture]:
                held.slots.release(held.scratch.pop(key))

    def close(self) -> None:
        """Frees the memory, unless a graph may still write there."""
        in_graphs = any(
            capture is not None for held in self._devices.values() for capture, _ in held.scratch
        )
        if self._taken or in_graphs:
            return
        devices, self._devices = self._devices, {}
        for index, held in devices.items():
            try:
                with self.on(index):
                    held.slots.free()
            except CudaError:
                continue  # a lost device has freed it already


def _results(probe: CudaProbe, slots: bytes) -> list[ProbeResult]:
    if not probe.ready:
        return [ProbeResult(0, None, "not_settled")] * len(probe.views)
    return [_result(reading) for reading in decode_slots(probe.plan, slots)]


def _result(reading: SlotReading | Exception) -> ProbeResult:
    if isinstance(reading, Exception):
        return ProbeResult(0, None, str(reading))
    if not reading.replay:
        return ProbeResult(0, None)
    stats: TensorStats = reading.stats
    bad, index = reading.first_bad_replay, reading.first_bad_index
    return ProbeResult(reading.replay, stats, None, bad, index)


def _line(error: Exception) -> str:
    """An error's first line, as a reason."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
