"""Device memory for probes: small blocks, zero when free, taken and given back without a lock.

Blocks are cut from slabs that are allocated outside captures only, and freed only when all were
given back: a graph may outlive the tracer, and its nodes then still write here. Whatever is taken
away goes through one call of a deque, so that hooks on several threads, or a signal handler's, do
each other no harm.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs

CHUNK_BYTES = 1 << 16
_FIRST_SLAB_BYTES = 16 << 20  # for some ten thousand launches of a few tensors
_MOST_BYTES = 128 << 20
_SIZES = tuple(1 << power for power in range(9, 17))  # of blocks; the largest is a chunk
_GAP_BYTES = 4096  # copied along rather than starting another copy


class Driver(Protocol):
    """What the slots need of the CUDA driver; sizes are in bytes."""

    def device_alloc(self, size_bytes: int) -> int: ...
    def host_alloc(self, size_bytes: int) -> int: ...
    def device_free(self, address: int) -> None: ...
    def host_free(self, address: int) -> None: ...
    def copy_to_device(self, device: int, host: int, size_bytes: int, stream: int) -> None: ...
    def copy_to_host(self, host: int, device: int, size_bytes: int, stream: int) -> None: ...
    def stream_synchronize(self, stream: int) -> None: ...


@attrs.frozen
class SlotBlock:
    """A block of device memory, and pinned memory of the same size that belongs to it."""

    device: int
    host: int
    size_bytes: int

    def part(self, offset: int, size_bytes: int) -> SlotBlock:
        """A block within this one."""
        return SlotBlock(self.device + offset, self.host + offset, size_bytes)


@attrs.define
class Slots:
    """The blocks of one device, which is to be the current one in ``grow``, ``clean``, ``read``.

    ``stream`` is one of our own, for copies that no user's stream waits for. CudaError passes to
    the caller.
    """

    driver: Driver
    stream: int
    most_bytes: int = _MOST_BYTES
    total_bytes: int = 0
    _slabs: list[SlotBlock] = attrs.field(factory=list)
    _chunks: deque[SlotBlock] = attrs.field(factory=deque)
    _free: dict[int, deque[SlotBlock]] = attrs.field(
        factory=lambda: {size: deque() for size in _SIZES}
    )
    _dirty: deque[SlotBlock] = attrs.field(factory=deque)
    _buffer: SlotBlock | None = None

    def take(self, size_bytes: int) -> SlotBlock | None:
        """A zeroed block of at least so many bytes; None if none is left, or so large."""
        size = next((size for size in _SIZES if size >= size_bytes), None)
        if size is None:
            return None
        free = self._free[size]
        while True:
            try:
                return free.popleft()
            except IndexError:
                chunk = self._chunk()
            if chunk is None:
                return None
            free.extend(chunk.part(offset, size) for offset in range(0, CHUNK_BYTES, size))

    def _chunk(self) -> SlotBlock | None:
        try:
            return self._chunks.popleft()
        except IndexError:
            return None

    def release(self, block: SlotBlock) -> None:
        """Gives a block back; it can be taken again after ``clean``."""
        self._dirty.append(block)

    @property
    def is_low(self) -> bool:
        """Whether less than half of the memory is free."""
        free = len(self._chunks) * CHUNK_BYTES
        free += sum(len(blocks) * size for size, blocks in self._free.items())
        return 2 * free < self.total_bytes or not self.total_bytes

    def grow(self) -> bool:
        """Doubles the memory, within the bound; whether there is any more now."""
        size = min(max(self.total_bytes, _FIRST_SLAB_BYTES), self.most_bytes - self.total_bytes)
        size -= size % CHUNK_BYTES
        if size <= 0:
            return False
        device = self.driver.device_alloc(size)
        try:
            host = self.driver.host_alloc(size)
            ctypes.memset(host, 0, size)
            self.driver.copy_to_device(device, host, size, self.stream)
            self.driver.stream_synchronize(self.stream)
        except BaseException:
            self.driver.device_free(device)
            raise
        slab = SlotBlock(device, host, size)
        self.total_bytes += size
        self._slabs.append(slab)
        self._chunks.extend(
            slab.part(offset, CHUNK_BYTES) for offset in range(0, size, CHUNK_BYTES)
        )
        return True

    def free(self) -> None:
        """Frees all memory; no block may be in use."""
        for blocks in (self._chunks, self._dirty, *self._free.values()):
            blocks.clear()
        slabs, self._slabs, self.total_bytes = self._slabs, [], 0
        for slab in slabs:
            self.driver.device_free(slab.device)
            self.driver.host_free(slab.host)
        if self._buffer is not None:
            self.driver.host_free(self._buffer.host)
            self._buffer = None

    def clean(self) -> None:
        """Zeroes the blocks that were given back, and lets them be taken again."""
        blocks = [self._dirty.popleft() for _ in range(len(self._dirty))]
        for block in blocks:
            self.upload(block, bytes(block.size_bytes), self.stream)
        if blocks:
            self.driver.stream_synchronize(self.stream)
        for block in blocks:
            self._free[block.size_bytes].append(block)

    def upload(self, block: SlotBlock, image: bytes, stream: int) -> None:
        """Enqueues a copy of the image to the beginning of the block."""
        ctypes.memmove(block.host, image, len(image))
        self.driver.copy_to_device(block.device, block.host, len(image), stream)

    def read(self, parts: Sequence[SlotBlock]) -> list[bytes]:
        """What parts of blocks hold, in their order; waits for the copies."""
        if self._buffer is None:
            size = 4 * CHUNK_BYTES
            self._buffer = SlotBlock(0, self.driver.host_alloc(size), size)
        buffer = self._buffer
        found: dict[int, bytes] = {}
        starts = sorted(slab.device for slab in self._slabs)
        for group in _adjacent(parts, starts, buffer.size_bytes):
            start = group[0].device
            size = group[-1].device + group[-1].size_bytes - start
            self.driver.copy_to_host(buffer.host, start, size, self.stream)
            self.driver.stream_synchronize(self.stream)
            for part in group:
                place = buffer.host + part.device - start
                found[part.device] = ctypes.string_at(place, part.size_bytes)
        return [found[part.device] for part in parts]


def _adjacent(
    parts: Sequence[SlotBlock], starts: Sequence[int], most_bytes: int
) -> Iterator[list[SlotBlock]]:
    """The parts by address, in groups that one copy each can bring to the host.

    ``starts`` are the slabs' addresses: slabs may follow each other, and CUDA refuses a copy that
    reaches from one allocation into the next.
    """
    group: list[SlotBlock] = []
    for part in sorted(parts, key=lambda part: part.device):
        if group:
            gap = part.device - group[-1].device - group[-1].size_bytes
            span = part.device + part.size_bytes - group[0].device
            one_slab = bisect_right(starts, part.device) == bisect_right(starts, group[0].device)
            if gap > _GAP_BYTES or span > most_bytes or not one_slab:
                yield group
                group = []
        group.append(part)
    if group:
        yield group
