"""Kernels that need a Hopper GPU: a persistent GEMM over host TMA descriptors."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK_N, BLOCK_K = 128, 64


@triton.jit
def _tile(number, rows, columns, GROUP: tl.constexpr):
    """Row and column of a tile, in groups of rows that share columns in the cache."""
    group = number // (GROUP * columns)
    first = group * GROUP
    height = min(rows - first, GROUP)
    return first + number % height, (number % (GROUP * columns)) // height


@triton.jit
def persistent_gemm(
    a, b, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """``c = a @ b.T`` for descriptors of bfloat16 matrices; each program takes several tiles.

    On Hopper Triton does not flatten a warp-specialised loop, and specialises one only with four
    warps and 64 rows.
    """
    rows = tl.cdiv(M, BM)
    columns = tl.cdiv(N, BN)
    for number in tl.range(
        tl.program_id(0),
        rows * columns,
        PROGRAMS,
        flatten=not SPECIALIZE,
        warp_specialize=SPECIALIZE,
    ):
        row, column = _tile(number, rows, columns, GROUP)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(tl.cdiv(K, BK)):
            left = a.load([row * BM, step * BK])
            right = b.load([column * BN, step * BK])
            total = tl.dot(left, right.T, total)
        c.store([row * BM, column * BN], total.to(tl.bfloat16))


class Gemm:
    """A persistent GEMM of two size x size bfloat16 matrices."""

    def __init__(self, size: int, *, specialize: bool) -> None:
        self.size, self.specialize = size, specialize
        self.rows, self.warps = (64, 4) if specialize else (128, 8)
        self.a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        self.b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        self.c = torch.zeros(size, size, device="cuda", dtype=torch.bfloat16)
        self.programs = torch.cuda.get_device_properties("cuda").multi_processor_count

    def launch(self):
        """One launch, with new descriptors as a library would make them."""
        descriptors = (
            TensorDescriptor.from_tensor(self.a, [self.rows, BLOCK_K]),
            TensorDescriptor.from_tensor(self.b, [BLOCK_N, BLOCK_K]),
            TensorDescriptor.from_tensor(self.c, [self.rows, BLOCK_N]),
        )
        persistent_gemm[(self.programs,)](
            *descriptors, self.size, self.size, self.size,
            BM=self.rows, BN=BLOCK_N, BK=BLOCK_K, GROUP=8,
            PROGRAMS=self.programs, SPECIALIZE=self.specialize, num_warps=self.warps,
            num_stages=3,
        )  # fmt: skip

    def expected(self):
        """What torch computes of the same matrices."""
        return self.a @ self.b.T
