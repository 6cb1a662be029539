"""Sees what torch does while a capture is in progress, and applies the rules to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lazytrace._simulator import operations
from lazytrace._simulator.patches import AttributePatches

if TYPE_CHECKING:
    from lazytrace._simulator.device import Device

# On a CPU tensor these copy to the host without dispatching anything that a mode could see.
_HOST_READS = (
    "cpu",
    "item",
    "numpy",
    "tolist",
    "__array__",
    "__bool__",
    "__complex__",
    "__float__",
    "__format__",
    "__index__",
    "__int__",
    "__reduce_ex__",
    "__repr__",
)


class DispatchGuard(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's base is untyped
    """Applies the rules to every operation that a capturing thread dispatches."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse, record or run one operation."""
        kwargs = kwargs or {}
        device = self._device
        device.refuse_in_strict_region(str(func))
        stream = device.current_stream
        capture = stream.capture
        if capture is None:
            self._beside_capture(func, args)
            return func(*args, **kwargs)
        if operations.waits_for_device(func, args):
            device.rules.refuse([capture], str(func))
        return operations.record(capture, stream, func, args, kwargs)

    def _beside_capture(self, func: Any, args: Any) -> None:
        rules = self._device.rules
        if operations.waits_for_device(func, args):
            rules.unsafe(f"cudaStreamSynchronize in {func}")
        elif operations.allocates(func):
            rules.unsafe(f"cudaMalloc in {func}")


class StrictGuard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses every operation, and remembers it in case somebody swallows the error."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.dispatched: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse the operation."""
        self.dispatched.append(str(func))
        self._device.rules.device_wide(f"{func} in a strict region")
        raise AssertionError(f"{func} was dispatched in a strict region")


@attrs.define
class HostReadGuard:
    """Replaces the methods of torch.Tensor that bring values to the host, in all threads."""

    _device: Device
    _patches: AttributePatches = attrs.field(factory=AttributePatches)

    def install(self) -> None:
        """Guard the methods."""
        for name in _HOST_READS:
            self._patch(name, self._device.host_read)
        self._patch("pin_memory", self._pinned, lambda tensor: tensor)  # host and device are one
        self._patch("to", self._to)

    def remove(self) -> None:
        """Give the methods back."""
        self._patches.restore()

    def _patch(
        self,
        name: str,
        check: Callable[..., None],
        allowed: Callable[..., Any] | None = None,
    ) -> None:
        original = getattr(torch.Tensor, name)
        then = original if allowed is None else allowed

        @functools.wraps(original)
        def guarded(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if tensor.device.type == "cpu":
                check(f"Tensor.{name}", *args, **kwargs)
            return then(tensor, *args, **kwargs)

        self._patches.set(torch.Tensor, name, guarded)

    def _pinned(self, operation: str, *_: Any, **__: Any) -> None:
        self._device.rules.unsafe(f"cudaHostAlloc in {operation}")

    def _to(self, operation: str, *args: Any, **kwargs: Any) -> None:
        to_host = any(str(value) == "cpu" for value in (*args[:1], kwargs.get("device")))
        if to_host and not kwargs.get("non_blocking", False):
            self._device.host_read(operation)
