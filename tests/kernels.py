"""Small Triton kernels that the whole suite shares."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Pair(NamedTuple):
    """Two tensors that travel as one argument."""

    left: torch.Tensor
    right: torch.Tensor


@triton.jit
def _scaled(value, factor):
    return value * factor


@triton.jit
def axpy(x, y, out, n, alpha, BLOCK: tl.constexpr):
    """``out = alpha * x + y``, with the product in a device function."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    product = _scaled(tl.load(x + offsets, mask=mask), alpha)
    tl.store(out + offsets, product + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def scale_(x, n, factor, BLOCK: tl.constexpr):
    """``x *= factor``, in place."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) * factor, mask=mask)


@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    """``out = x`` for tensors of any one dtype."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask), mask=mask)


@triton.jit
def softmax(x, out, row_stride, columns, BLOCK: tl.constexpr):
    """The softmax of each row, one program a row."""
    row = tl.program_id(0) * row_stride
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    values = tl.load(x + row + offsets, mask=mask, other=-float("inf"))
    exponentials = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row + offsets, exponentials / tl.sum(exponentials, axis=0), mask=mask)


@triton.jit
def matmul(
    a, b, c, M, N, K, a_row, a_col, b_row, b_col, c_row, c_col,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """``c = a @ b``, one program for each BM x BN tile."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        inner = start + tl.arange(0, BK)
        a_tile = tl.load(
            a + rows[:, None] * a_row + inner[None, :] * a_col,
            mask=(rows[:, None] < M) & (inner[None, :] < K),
            other=0.0,
        )
        b_tile = tl.load(
            b + inner[:, None] * b_row + columns[None, :] * b_col,
            mask=(inner[:, None] < K) & (columns[None, :] < N),
            other=0.0,
        )
        total += tl.dot(a_tile, b_tile)
    tl.store(
        c + rows[:, None] * c_row + columns[None, :] * c_col,
        total,
        mask=(rows[:, None] < M) & (columns[None, :] < N),
    )


@triton.jit
def weighted_sum(tensors, out, weights, n, BLOCK: tl.constexpr):
    """``out = weights[0] * tensors[0] + weights[1] * tensors[1]``, of two tuples."""
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    first = tl.load(tensors[0] + offsets, mask=mask) * weights[0]
    second = tl.load(tensors[1] + offsets, mask=mask) * weights[1]
    tl.store(out + offsets, first + second, mask=mask)


@triton.jit
def difference(pair, out, n, BLOCK: tl.constexpr):
    """``out = pair.left - pair.right``, of a namedtuple."""
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    left = tl.load(pair.left + offsets, mask=mask)
    tl.store(out + offsets, left - tl.load(pair.right + offsets, mask=mask), mask=mask)


@triton.jit
def doubled_tile(descriptor, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """``out = 2 * tile``, of the first tile of a TensorDescriptor."""
    tile = descriptor.load([0, 0])
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    tl.store(out + rows[:, None] * COLUMNS + columns[None, :], tile * 2)
