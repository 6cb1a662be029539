"""Copies bytes of device memory to the host, through one pinned buffer of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Protocol

import attrs

from lazytrace._capture.views import TensorView
from lazytrace._device.runtime import UnreadableBytes
from lazytrace._values.view_bytes import Block, blocks

_BUFFER_BYTES = 1 << 20
_MAX_COPIES = 1 << 14  # of some microseconds each
_MAX_PITCH = (1 << 31) - 1


class Driver(Protocol):
    """What the copies need of the CUDA driver; sizes are in bytes."""

    def host_alloc(self, size_bytes: int) -> int: ...
    def copy_to_host(self, host: int, device: int, size_bytes: int, stream: int) -> None: ...
    def copy_rows_to_host(
        self, host: int, device: int, width: int, rows: int, pitch: int, stream: int
    ) -> None: ...
    def stream_synchronize(self, stream: int) -> None: ...


@attrs.define
class ByteReader:
    """Reads views of any device; its buffer is allocated by the first reading and kept.

    The view's device must be the current one. A view that takes more than 16,384 copies is
    refused.
    """

    driver: Driver
    buffer_bytes: int = _BUFFER_BYTES
    _buffer: int | None = None

    def read(self, view: TensorView, limit: int, stream: int) -> bytes:
        """The first bytes of the view's elements; waits for ``stream`` once a buffer."""
        if self._buffer is None:
            self._buffer = self.driver.host_alloc(self.buffer_bytes)
        pieces = list(_pieces(view, limit, self.buffer_bytes))
        data = bytearray()
        filled = 0
        for piece in pieces:
            size = piece.width * piece.rows
            if filled + size > self.buffer_bytes:
                data += self._finished(filled, stream)
                filled = 0
            self._copy(piece, self._buffer + filled, stream)
            filled += size
        if filled:
            data += self._finished(filled, stream)
        return bytes(data)

    def _copy(self, piece: Block, host: int, stream: int) -> None:
        if piece.rows == 1:
            self.driver.copy_to_host(host, piece.address, piece.width, stream)
        else:
            self.driver.copy_rows_to_host(
                host, piece.address, piece.width, piece.rows, piece.pitch, stream
            )

    def _finished(self, size: int, stream: int) -> bytes:
        self.driver.stream_synchronize(stream)
        return ctypes.string_at(self._buffer or 0, size)


def _pieces(view: TensorView, limit: int, most: int) -> Iterator[Block]:
    """The view's blocks, cut to pieces of at most ``most`` bytes that one copy can take."""
    copies = 0
    for block in blocks(view, limit):
        for piece in _cut(block, most):
            copies += 1
            if copies > _MAX_COPIES:
                raise UnreadableBytes(f"save_tensors: needs more than {_MAX_COPIES} copies")
            yield piece


def _cut(block: Block, most: int) -> Iterator[Block]:
    width, pitch = block.width, block.pitch
    per_copy = min(block.rows, most // width) if pitch <= _MAX_PITCH else 1
    for row in range(0, block.rows, max(1, per_copy)):
        address = block.address + row * pitch
        rows = min(per_copy, block.rows - row)
        if rows > 1:
            yield Block(address, width, rows, pitch)
            continue
        for start in range(0, width, most):
            yield Block(address + start, min(most, width - start))
