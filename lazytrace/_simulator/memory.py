"""The memory of simulated graphs: pools that own bytes, and weak references to everybody else's."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import torch

ALIGNMENT = 512  # CUDA's caching allocator rounds every block to 512 bytes
SEGMENT_BYTES = 1 << 16
# Freed memory reads as this byte: NaN in every floating-point dtype, -1 in the signed integers.
POISON_BYTE = b"\xff"

PoolId = tuple[int, int]


@attrs.define
class _Segment:
    buffer: bytearray
    start: int
    end: int
    free: int  # address of the first byte that was not handed out

    @classmethod
    def of_size(cls, nbytes: int) -> _Segment:
        buffer = bytearray(nbytes + ALIGNMENT)
        base = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        start = base + -base % ALIGNMENT
        return cls(buffer, start, start + nbytes, start)

    def take(self, nbytes: int) -> memoryview:
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        offset = self.free - base
        self.free += nbytes + -nbytes % ALIGNMENT
        return memoryview(self.buffer)[offset : offset + nbytes]


@attrs.define(eq=False)
class Pool:
    """Bytes that belong to the graphs captured into one pool, for as long as one of them lives.

    A tensor made in a capture gets a storage over these bytes: the storage dies with the user's
    last reference, the bytes stay for the replay. Nothing is reused within a pool.
    """

    id: PoolId
    _segments: list[_Segment] = attrs.field(factory=list)
    _blocks: set[int] = attrs.field(factory=set)

    def tensor_like(self, model: torch.Tensor) -> torch.Tensor:
        """A tensor of the model's dtype and layout over new poisoned bytes of this pool."""
        nbytes = model.untyped_storage().nbytes()
        plain = torch.empty(0, dtype=model.dtype)
        if nbytes == 0:
            return plain.as_strided(model.size(), model.stride())
        block = self._take(nbytes)
        block[:] = POISON_BYTE * nbytes
        storage = torch.frombuffer(block, dtype=torch.uint8).untyped_storage()
        self._blocks.add(storage.data_ptr())
        return plain.set_(storage, model.storage_offset(), model.size(), model.stride())

    def owns(self, storage_address: int) -> bool:
        """Whether the storage that starts at this address lies on this pool's bytes."""
        return storage_address in self._blocks

    def ranges(self) -> list[tuple[int, int]]:
        """Address ranges ``[start, end)`` of the pool's segments."""
        return [(segment.start, segment.end) for segment in self._segments]

    def _take(self, nbytes: int) -> memoryview:
        if not self._segments or self._segments[-1].end - self._segments[-1].free < nbytes:
            self._segments.append(
                _Segment.of_size(max(SEGMENT_BYTES, nbytes + -nbytes % ALIGNMENT))
            )
        return self._segments[-1].take(nbytes)


@attrs.define
class Poison:
    """Stands in for freed memory during one replay: the same bytes for the same dead storage."""

    _buffers: dict[int, _Segment] = attrs.field(factory=dict)

    def start(self, storage_address: int, nbytes: int) -> int:
        """Address of ``nbytes`` poisoned bytes that replace the storage that began there."""
        held = self._buffers.get(storage_address)
        if held is None or held.end - held.start < nbytes:
            held = _Segment.of_size(nbytes)
            held.buffer[:] = POISON_BYTE * len(held.buffer)
            self._buffers[storage_address] = held
        return held.start


@attrs.frozen
class Address:
    """What a kernel gets for a tensor: a raw pointer with the element type that it points to."""

    dtype: Any
    value: int

    def data_ptr(self) -> int:
        """The raw pointer."""
        return self.value


@attrs.frozen
class Block:
    """One storage as a captured node knows it: an address and a size, never the storage itself.

    ``storage`` is None for memory of the graph's own pool, which cannot go away.
    """

    start: int
    nbytes: int
    storage: Callable[[], torch.UntypedStorage | None] | None

    @classmethod
    def of(cls, storage: torch.UntypedStorage, pool: Pool) -> Block:
        """The block of a storage that a node of a graph of ``pool`` refers to."""
        start = storage.data_ptr()
        owned = pool.owns(start)
        return cls(start, storage.nbytes(), None if owned else weakref.ref(storage))

    def resolve(self, poison: Poison) -> int:
        """Where to find the bytes now: poison if the storage is dead, has moved or shrunk."""
        if self.storage is None:
            return self.start
        storage = self.storage()
        if (
            storage is not None
            and storage.data_ptr() == self.start
            and storage.nbytes() >= self.nbytes
        ):
            return self.start
        return poison.start(self.start, self.nbytes)


@attrs.frozen
class Pointer:
    """A tensor argument of a captured kernel."""

    block: Block
    dtype: Any
    offset: int  # bytes from the start of the storage

    def resolve(self, poison: Poison) -> Address:
        """The argument of one replay."""
        return Address(self.dtype, self.block.resolve(poison) + self.offset)


@attrs.frozen
class TensorView:
    """A tensor operand of a captured torch operation."""

    block: Block
    dtype: torch.dtype
    storage_offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor, pool: Pool) -> TensorView:
        """The view that a node of a graph of ``pool`` keeps of a tensor."""
        block = Block.of(tensor.untyped_storage(), pool)
        layout = tuple(tensor.size()), tuple(tensor.stride())
        return cls(block, tensor.dtype, int(tensor.storage_offset()), *layout)

    def resolve(self, poison: Poison) -> torch.Tensor:
        """A tensor over the bytes of one replay; it must not outlive that replay."""
        plain = torch.empty(0, dtype=self.dtype)
        if self.block.nbytes == 0:
            return plain.as_strided(self.size, self.stride)
        raw = (ctypes.c_char * self.block.nbytes).from_address(self.block.resolve(poison))
        storage = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()
        return plain.set_(storage, self.storage_offset, self.size, self.stride)
