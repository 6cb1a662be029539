"""The Triton driver of the simulated device, under the real JIT and the real compiler."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from lazytrace._simulator.interpreter import Kernel
from lazytrace._simulator.nodes import LightNode

if TYPE_CHECKING:
    from lazytrace._simulator.device import Device

_OWN_KERNELS = "lazytrace._statistics."
_H100 = {
    "max_shared_mem": 232448,
    "max_num_regs": 65536,
    "multiprocessor_count": 132,
    "warpSize": 32,
    "sm_clock_rate": 1980000,
    "mem_clock_rate": 2619000,
    "mem_bus_width": 6144,
}


class DeviceIndex(int):
    """Device 0 of one simulation.

    It equals 0 but is another key: Triton caches compiled kernels by device index, and those of a
    simulation must meet neither a real device's nor another simulation's.
    """

    def __hash__(self) -> int:
        return object.__hash__(self)


@attrs.define(eq=False)
class Utilities:
    """Stands in for Triton's C extension: properties, loading and unloading of binaries."""

    _device: Device
    _handles: Iterator[int] = attrs.field(factory=lambda: itertools.count(0x51310001))

    def get_device_properties(self, device: int) -> dict[str, int]:
        """The properties of an H100."""
        return dict(_H100)

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills and the most threads of a block."""
        handle = next(self._handles)
        return handle, handle, 32, 0, 1024

    def unload_module(self, module: int) -> None:
        """What a dying CompiledKernel calls (Triton >= 3.8)."""
        self._device.rules.module_unload()

    def is_stream_capturing(self, stream: int) -> bool:
        """Whether the stream of this handle is capturing."""
        return self._device.stream(stream).capture is not None


class Launcher:
    """Called like CudaLauncher on Triton 3.4 to 3.9."""

    def __init__(self, src: Any, metadata: Any) -> None:
        driver = active_driver()
        jit_function = getattr(src, "fn", None)
        if jit_function is None or _is_gluon(jit_function):
            raise NotImplementedError(
                "lazytrace.testing.simulate runs @triton.jit kernels only: "
                f"{metadata.name} comes from Gluon or from IR, which Triton cannot interpret"
            )
        driver.jit_functions.append(weakref.ref(jit_function))
        self._device = driver.device
        self._kernel = Kernel(
            metadata.name,
            jit_function.fn,
            tuple(jit_function.signature.parameters.values()),
            tuple(parameter.is_constexpr for parameter in jit_function.params),
            _is_users(jit_function.fn.__module__),
        )
        self._light = LightNode(self._kernel)

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: int,
        packed_metadata: Any,
        launch_metadata: Any,
        enter_hook: Any,
        exit_hook: Any,
        *args: Any,
    ) -> None:
        """One launch: the enter hook, the kernel unless the grid is empty, the exit hook."""
        device = self._device
        if enter_hook is not None:
            device.call_hook(enter_hook, launch_metadata)
        if grid_x * grid_y * grid_z > 0:
            device.submit(self._kernel, self._light, (grid_x, grid_y, grid_z), stream, args)
        if exit_hook is not None:
            device.call_hook(exit_hook, launch_metadata)


class SimulatedDriver(DriverBase):  # type: ignore[misc]  # Triton is untyped
    """Makes Triton compile for an NVIDIA device and launch on the simulated one.

    ``lazytrace_runtime`` is the seam through which lazytrace reaches a device that is not CUDA.
    """

    launcher_cls = Launcher

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.lazytrace_runtime: object | None = None
        self.utils = Utilities(device)
        self.jit_functions: list[weakref.ref[Any]] = []
        self.index = DeviceIndex(0)

    @classmethod
    def is_active(cls) -> bool:
        """Never chosen by Triton itself."""
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Unused: there is no C launcher."""
        return ty

    def get_current_target(self) -> Any:
        """The simulated architecture."""
        return GPUTarget("cuda", self.device.arch, 32)

    def get_current_device(self) -> int:
        """The one device."""
        return self.index

    def set_current_device(self, device: int) -> None:
        """There is one device."""

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """The architecture as (major, minor)."""
        return divmod(self.device.arch, 10)

    def get_current_stream(self, device: int = 0) -> int:
        """Handle of the calling thread's current stream."""
        return self.device.current_stream.handle

    def get_active_torch_device(self) -> torch.device:
        """Where the tensors are."""
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        """torch.cuda, simulated too."""
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """Triton's own."""
        from triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """A small stand-in for the level 2 cache."""
        return torch.empty(16, dtype=torch.int32)

    def clear_cache(self, cache: torch.Tensor) -> None:
        """There is no cache to clear."""

    def assemble_tensormap_to_arg(self, tensormaps_info: Any, args: Any) -> Any:
        """Arguments go to the interpreter as they are."""
        return args

    def evict(self) -> None:
        """Forget every kernel compiled for this device."""
        for reference in self.jit_functions:
            jit_function = reference()
            if jit_function is not None:
                jit_function.device_caches.pop(self.index, None)


def driver_slot() -> str:
    """The attribute of triton.runtime.driver that holds the active driver."""
    return "_active" if "_active" in vars(triton.runtime.driver) else "active"  # 3.4: a plain one


def find_driver() -> SimulatedDriver | None:
    """The driver of the simulation in progress; makes Triton look for no device."""
    driver = vars(triton.runtime.driver)[driver_slot()]
    return driver if type(driver) is SimulatedDriver else None


def active_driver() -> SimulatedDriver:
    """The driver of the simulation in progress."""
    driver = find_driver()
    if driver is None:
        raise RuntimeError("the simulation that this object belongs to is over")
    return driver


def active_device() -> Device:
    """The device of the simulation in progress."""
    return active_driver().device


def _is_users(module: str) -> bool:
    return not module.startswith(_OWN_KERNELS)


def _is_gluon(jit_function: Any) -> bool:
    is_gluon = getattr(jit_function, "is_gluon", None)
    return bool(is_gluon is not None and is_gluon())
