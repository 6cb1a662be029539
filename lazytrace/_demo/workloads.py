"""What the demonstration benchmarks: each kernel with its tensors, ready to be launched."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
import triton

from lazytrace._demo import kernels


@attrs.frozen
class Workload:
    """One benchmark: ``launch`` launches the kernel once, on tensors that it holds."""

    name: str
    launch: Callable[[], object]


@attrs.frozen
class Sizes:
    """Elements of the vectors, rows and columns of the softmax, side of the square matrices."""

    elements: int
    rows: int
    columns: int
    side: int
    tile: int


ON_A_GPU = Sizes(elements=1 << 20, rows=1024, columns=768, side=512, tile=64)
SIMULATED = Sizes(elements=1000, rows=4, columns=48, side=32, tile=16)


def workloads(sizes: Sizes, device: str) -> list[Workload]:
    """Vector add, fused softmax and matrix product on ``device``, with seeded values."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=generator)

    return [
        _vector_add(normal(sizes.elements), normal(sizes.elements)),
        _softmax(normal(sizes.rows, sizes.columns)),
        _matmul(normal(sizes.side, sizes.side), normal(sizes.side, sizes.side), sizes.tile),
    ]


def _vector_add(x: torch.Tensor, y: torch.Tensor) -> Workload:
    out, block = torch.empty_like(x), 256
    launcher = kernels.vector_add[(triton.cdiv(x.numel(), block),)]
    return Workload("vector_add", lambda: launcher(x, y, out, x.numel(), BLOCK=block))


def _softmax(x: torch.Tensor) -> Workload:
    rows, columns = x.shape
    out, block = torch.empty_like(x), triton.next_power_of_2(columns)
    launcher = kernels.fused_softmax[(rows,)]
    return Workload("fused_softmax", lambda: launcher(x, out, x.stride(0), columns, BLOCK=block))


def _matmul(a: torch.Tensor, b: torch.Tensor, tile: int) -> Workload:
    c = torch.empty_like(a)
    inner, rows = a.shape[1], (a.stride(0), b.stride(0), c.stride(0))
    launcher = kernels.matmul[(a.shape[0] // tile, b.shape[1] // tile)]
    return Workload("matmul", lambda: launcher(a, b, c, inner, *rows, TILE=tile))
