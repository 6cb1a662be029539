"""What a simulated graph consists of: kernels, torch operations and other graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import torch
from torch.utils._pytree import tree_map_only

from lazytrace._simulator.interpreter import Kernel
from lazytrace._simulator.memory import Block, Pointer, Poison, Pool, TensorView

if TYPE_CHECKING:
    from lazytrace._simulator.device import Device


class Node(Protocol):
    """One node of a graph."""

    @property
    def name(self) -> str:
        """The kernel's or the operation's name."""

    def run(self, device: Device, poison: Poison) -> None:
        """Do the work of one replay."""


@attrs.frozen
class KernelNode:
    """A Triton launch; ``args`` hold pointers where the launch had tensors."""

    kernel: Kernel
    grid: tuple[int, int, int]
    args: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.name

    def run(self, device: Device, poison: Poison) -> None:
        """Run the kernel on what its pointers refer to now."""
        args = [map_pointers(arg, lambda pointer: pointer.resolve(poison)) for arg in self.args]
        device.run_kernel(self.kernel, self.grid, args)


@attrs.frozen
class LightNode:
    """A Triton launch of which only the kernel's name is kept, one object for all of them."""

    kernel: Kernel

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.name

    def run(self, device: Device, poison: Poison) -> None:
        """Advance the clock."""
        device.tick(self.kernel)


@attrs.frozen
class OperationNode:
    """A torch operation; its operands are views, ``results`` what the capture handed out."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    results: tuple[TensorView | None, ...]

    @property
    def name(self) -> str:
        """The operation's qualified name."""
        return str(self.function)

    def run(self, device: Device, poison: Poison) -> None:
        """Compute again and write into the memory of the first results."""

        def rebuild(tree: Any) -> Any:
            return tree_map_only(TensorView, lambda view: view.resolve(poison), tree)

        outcome = self.function(*rebuild(self.args), **rebuild(self.kwargs))
        values = [value for value in _flat(outcome) if isinstance(value, torch.Tensor)]
        for view, value in zip(self.results, values, strict=True):
            if view is not None:
                view.resolve(poison).copy_(value)


@attrs.frozen
class ChildNode:
    """The nodes of another graph that was replayed into a capture, and its memory."""

    nodes: tuple[Node, ...]
    pool: Pool
    name: str = "child graph"

    def run(self, device: Device, poison: Poison) -> None:
        """Replay the other graph's nodes."""
        for node in self.nodes:
            node.run(device, poison)


def pointers_of(args: tuple[Any, ...], pool: Pool) -> tuple[Any, ...]:
    """A launch's arguments for a node: pointers that hold no storage in place of tensors."""
    return tuple(map_pointers(argument, lambda tensor: _pointer(tensor, pool)) for argument in args)


def map_pointers(argument: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert what has memory in an argument: tensors, also in tuples and descriptors."""
    if isinstance(argument, Pointer) or hasattr(argument, "data_ptr"):
        return convert(argument)
    if isinstance(argument, tuple):
        items = [map_pointers(item, convert) for item in argument]
        return type(argument)(*items) if hasattr(argument, "_fields") else tuple(items)
    if hasattr(argument, "block_shape") and hasattr(argument, "base"):
        descriptor = copy.copy(argument)
        descriptor.base = map_pointers(argument.base, convert)
        return descriptor
    return argument


def _pointer(argument: Any, pool: Pool) -> Pointer:
    # triton.reinterpret() wraps a tensor and holds it as `base`.
    tensor = argument if isinstance(argument, torch.Tensor) else getattr(argument, "base", None)
    address = argument.data_ptr()
    if not isinstance(tensor, torch.Tensor):
        return Pointer(Block(address, 0, None), argument.dtype, 0)
    block = Block.of(tensor.untyped_storage(), pool)
    return Pointer(block, argument.dtype, address - block.start)


def _flat(outcome: Any) -> Iterator[Any]:
    if isinstance(outcome, (tuple, list)):
        for item in outcome:
            yield from _flat(item)
    else:
        yield outcome
