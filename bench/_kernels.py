"""The kernels that the scripts launch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    """``out = x + y``: three tensors and a scalar."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def wide(
    t0, t1, t2, t3, t4, t5, t6, t7, t8, out,
    n, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Ten tensors and twelve scalars, as a large fused kernel takes."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(t0 + offsets, mask=mask) * s1 + tl.load(t1 + offsets, mask=mask) * s2
    total += tl.load(t2 + offsets, mask=mask) * s3 + tl.load(t3 + offsets, mask=mask) * s4
    total += tl.load(t4 + offsets, mask=mask) * s5 + tl.load(t5 + offsets, mask=mask) * s6
    total += tl.load(t6 + offsets, mask=mask) * s7 + tl.load(t7 + offsets, mask=mask) * s8
    total += tl.load(t8 + offsets, mask=mask) * s9 + s10 + s11
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def spin(x, out, n, steps, BLOCK: tl.constexpr):
    """``out = x`` after ``steps`` dependent multiply-adds: a kernel as long as one likes."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x + offsets, mask=mask)
    for _ in range(steps):
        value = value * 0.999 + 0.001
    tl.store(out + offsets, value, mask=mask)
