"""Installs a simulated device into Triton and torch.cuda, and takes it out again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs
import torch
import triton
from triton.compiler import compiler

from lazytrace._simulator import graph as graphs
from lazytrace._simulator import streams
from lazytrace._simulator.device import Device
from lazytrace._simulator.driver import SimulatedDriver, driver_slot, find_driver
from lazytrace._simulator.guards import StrictGuard
from lazytrace._simulator.patches import AttributePatches
from lazytrace._simulator.rules import CaptureMode
from lazytrace.errors import LazytraceError

_FP_FUSION_NOTICE = "TRITON_DEFAULT_FP_FUSION"


@attrs.define(eq=False)
class Simulation:
    """A simulation in progress, as ``lazytrace.testing.simulate()`` yields it.

    Everything here dispatches no torch operation and breaks no capture.
    """

    driver: SimulatedDriver
    _exit: ExitStack
    probe_slots: int = 1 << 16  # of values="at_launch"

    @property
    def device(self) -> Device:
        """The simulated device."""
        device: Device = self.driver.device
        return device

    @property
    def launches(self) -> int:
        """Triton launches submitted so far: not those with an empty grid, not replays."""
        return self.device.launches

    @property
    def clock_ms(self) -> float:
        """The virtual clock in milliseconds; it stands still if ``kernel_ms`` is None."""
        return self.device.clock_ms

    @property
    def strict_hooks(self) -> bool:
        """Whether launch hooks of a capture may dispatch nothing at all (the default).

        If False they are under CUDA's rule: what synchronises is refused, the rest adds nodes.
        """
        return self.device.strict_hooks

    @strict_hooks.setter
    def strict_hooks(self, strict: bool) -> None:
        self.device.strict_hooks = strict

    def nodes(self, graph: Any) -> int:
        """How many nodes a graph has, or its capture has so far."""
        return len(graphs.nodes_of(graph))

    def node_names(self, graph: Any) -> list[str]:
        """The nodes' kernels and operations, in the order of the capture."""
        return [node.name for node in graphs.nodes_of(graph)]

    def graph_ranges(self, graph: Any) -> list[tuple[int, int]]:
        """Address ranges ``[start, end)`` of the memory pool that a graph uses."""
        return graphs.ranges_of(graph)

    def current_stream_handle(self) -> int:
        """Handle of the calling thread's current stream; 0 is the default stream."""
        return self.device.current_stream.handle

    def stream_capturing(self, handle: int) -> bool:
        """Whether a stream is capturing."""
        return self.device.stream(handle).capture is not None

    def capture_id(self, handle: int) -> int | None:
        """The id of the capture that a stream takes part in, unless that one is invalidated."""
        capture = self.device.stream(handle).capture
        return None if capture is None or capture.error is not None else capture.id

    def stream_idle(self, handle: int) -> bool:
        """Whether a stream has no work: not capturing, and not held by ``busy()``."""
        state = self.device.stream(handle)
        return state.capture is None and not state.busy

    def exchange_capture_mode(self, mode: str) -> str:
        """Set the calling thread's capture mode (``"relaxed"``...) and return the one before."""
        return self.device.rules.exchange_mode(CaptureMode(mode)).value

    @contextmanager
    def busy(self, stream: Any) -> Iterator[None]:
        """Let a stream's queries say that it has work, until it is synchronised."""
        state = self.device.stream(stream.cuda_stream)
        state.busy = True
        try:
            yield
        finally:
            state.busy = False

    @contextmanager
    def strict(self) -> Iterator[None]:
        """Refuse everything that torch dispatches in the block, in a capture or not.

        An AssertionError on leaving names what was dispatched, even if the refusal was swallowed.
        """
        guard = StrictGuard(self.device)
        with guard:
            yield
        if guard.dispatched:
            raise AssertionError(f"dispatched in a strict region: {', '.join(guard.dispatched)}")

    def on_exit(self, callback: Callable[[], object]) -> None:
        """Call back when the simulation is left, last registered first, all being in place."""
        self._exit.callback(callback)


@contextmanager
def running(arch: int, execute: bool, kernel_ms: float | None) -> Iterator[Simulation]:
    """A simulation, from the first patch to the last restoration."""
    if find_driver() is not None:
        raise LazytraceError("lazytrace.testing.simulate() cannot be nested: one is in progress")
    if triton.knobs.runtime.interpret:
        raise LazytraceError(
            "lazytrace.testing.simulate() needs kernels that are compiled: unset TRITON_INTERPRET"
        )
    driver = SimulatedDriver(Device(arch, execute, kernel_ms))
    with AttributePatches() as patches, ExitStack() as exit_stack:
        patches.set(triton.runtime.driver, driver_slot(), driver)
        _patch_triton(patches, exit_stack, driver)
        _patch_torch(patches, driver.device)
        exit_stack.callback(_abandon_captures, driver.device)
        yield Simulation(driver, exit_stack)


def _abandon_captures(device: Device) -> None:
    for capture in list(device.rules.open):
        device.abandon_capture(capture)


def _patch_triton(
    patches: AttributePatches, exit_stack: ExitStack, driver: SimulatedDriver
) -> None:
    loaded: weakref.WeakSet[Any] = weakref.WeakSet()
    create = compiler.CompiledKernel.__init__
    make_ir = compiler.ASTSource.make_ir

    def initialize(kernel: Any, *args: Any, **kwargs: Any) -> None:
        create(kernel, *args, **kwargs)
        loaded.add(kernel)

    def make_ir_unpatched(source: Any, *args: Any, **kwargs: Any) -> Any:
        with driver.device.interpreter.lock:
            return make_ir(source, *args, **kwargs)

    patches.set(compiler.CompiledKernel, "__init__", initialize)
    patches.set(compiler.ASTSource, "make_ir", make_ir_unpatched)
    exit_stack.callback(_unload, loaded)
    exit_stack.callback(driver.evict)
    warn_once = getattr(triton.knobs, "warn_once", None)
    if warn_once is not None:
        patches.set(triton.knobs, "warn_once", _without_fusion_notice(warn_once))


def _unload(kernels: weakref.WeakSet[Any]) -> None:
    # A kernel that outlives the simulation loads anew if it is ever launched on a real device.
    for kernel in list(kernels):
        kernel.module = kernel.function = None
        if hasattr(kernel, "_run"):
            kernel._run = None
        else:
            vars(kernel).pop("run", None)


def _without_fusion_notice(warn_once: Callable[[str], None]) -> Callable[[str], None]:
    # The simulator compiles, not the user: Triton's notice is kept for the user's own compile.
    def filtered(message: str) -> None:
        if _FP_FUSION_NOTICE not in message:
            warn_once(message)

    return filtered


def _patch_torch(patches: AttributePatches, device: Device) -> None:
    cuda = torch.cuda
    for name, value in _torch_cuda(device).items():
        patches.set(cuda, name, value)
    patches.set(cuda.memory, "memory_snapshot", cuda.memory_snapshot)
    patches.set(cuda.graphs, "is_current_stream_capturing", cuda.is_current_stream_capturing)
    patches.set(cuda.graphs, "graph_pool_handle", cuda.graph_pool_handle)
    patches.set(cuda.graphs, "CUDAGraph", graphs.CUDAGraph)
    patches.set(cuda.graph, "default_capture_stream", None)
    patches.set(torch._C, "_CUDAGraph", graphs.BaseGraph)
    patches.set(torch._C, "_host_emptyCache", _nothing)
    if hasattr(torch, "accelerator"):
        patches.set(torch.accelerator, "synchronize", cuda.synchronize)


def _torch_cuda(simulated: Device) -> dict[str, Any]:
    def synchronize(device: Any = None) -> None:
        """Wait for the device."""
        simulated.rules.device_wide("cudaDeviceSynchronize")
        for state in list(simulated.streams.values()):
            state.busy = False

    def current_stream(device: Any = None) -> streams.Stream:
        """The calling thread's current stream."""
        return streams.Stream(stream_ptr=simulated.current_stream.handle)

    def default_stream(device: Any = None) -> streams.Stream:
        """The default stream."""
        return streams.Stream(stream_ptr=0)

    def set_stream(stream: streams.Stream) -> None:
        """Make a stream the current one."""
        simulated.set_current_stream(stream._state)

    def is_current_stream_capturing() -> bool:
        """Whether the calling thread's current stream is capturing."""
        return simulated.current_stream.capture is not None

    def memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> list[Any]:
        """The segments of the graphs' memory pools."""
        return [
            {
                "device": 0,
                "address": start,
                "total_size": end - start,
                "segment_pool_id": pool.id,
            }
            for pool in list(simulated.pools.values())
            if mempool_id is None or pool.id == tuple(mempool_id)
            for start, end in pool.ranges()
        ]

    return {
        "Stream": streams.Stream,
        "ExternalStream": streams.ExternalStream,
        "Event": streams.Event,
        "CUDAGraph": graphs.CUDAGraph,
        "StreamContext": streams.StreamContext,
        "stream": streams.StreamContext,
        "device": streams.DeviceContext,
        "synchronize": synchronize,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "is_current_stream_capturing": is_current_stream_capturing,
        "memory_snapshot": memory_snapshot,
        "graph_pool_handle": lambda: simulated.new_pool_id(shared=True),
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "set_device": _nothing,
        "get_device_capability": lambda device=None: divmod(simulated.arch, 10),
        "get_device_name": lambda device=None: "lazytrace simulated device",
        "empty_cache": _nothing,
    }


def _nothing(*_: Any) -> None:
    """Do nothing."""
