"""Kernels and captures for the tests of cases, contracts and bad input."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def ignore(x, y, value):
    """Takes anything and does nothing: for what is described without being touched."""


@triton.jit
def ignore_constexpr(x, thing: tl.constexpr):
    """Takes any compile-time constant and does nothing."""


@triton.jit
def accumulate(x, out, n, BLOCK: tl.constexpr):
    """``out += x``, in place."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(out + offsets, mask=mask) + tl.load(x + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def transposed_tile(x, out, SIZE: tl.constexpr):
    """``out = x.T`` of one tile; a tile of 256 needs more shared memory than any GPU has."""
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    tile = tl.load(x + rows * SIZE + columns)
    tl.store(out + rows * SIZE + columns, tl.trans(tile))


def captured(body, **options):
    """A graph of what ``body`` launches; ``options`` are those of torch.cuda.graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        body()
    return graph
