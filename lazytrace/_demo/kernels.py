"""The kernels that the demonstration launches: plain Triton, as a user would write them."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
# Bodies of @triton.jit kernels: Triton compiles them, Python's types say nothing there.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803 - Triton: constexprs in upper case
    """``out = x + y`` over ``n`` elements."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def fused_softmax(x, out, row_stride, columns, BLOCK: tl.constexpr):  # noqa: N803
    """The softmax of each row, one program a row."""
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    row = tl.program_id(0) * row_stride
    values = tl.load(x + row + offsets, mask=mask, other=-float("inf"))
    exponentials = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row + offsets, exponentials / tl.sum(exponentials, axis=0), mask=mask)


@triton.jit
def matmul(a, b, c, K, a_row, b_row, c_row, TILE: tl.constexpr):  # noqa: N803
    """``c = a @ b`` of row-major matrices whose sizes are multiples of ``TILE``."""
    rows = (tl.program_id(0) * TILE + tl.arange(0, TILE))[:, None]
    columns = (tl.program_id(1) * TILE + tl.arange(0, TILE))[None, :]
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, TILE):
        inner = start + tl.arange(0, TILE)
        left = tl.load(a + rows * a_row + inner[None, :])
        right = tl.load(b + inner[:, None] * b_row + columns)
        total += tl.dot(left, right)
    tl.store(c + rows * c_row + columns, total)
