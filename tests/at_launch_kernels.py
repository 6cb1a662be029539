"""Kernels and a small model for the tests of values read at the launch."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
import triton
import triton.language as tl

SIZE = 64


@triton.jit
def divide(x, y, out, n, BLOCK: tl.constexpr):
    """``out = x / y``."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    quotient = tl.load(x + offsets, mask=mask) / tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, quotient, mask=mask)


@triton.jit
def clean_(x, n, BLOCK: tl.constexpr):
    """Replaces what is not finite by 0, in place."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x + offsets, mask=mask)
    tl.store(x + offsets, tl.where(value - value == 0, value, 0.0), mask=mask)


@triton.jit
def mix(x, y, out, n, bad, BLOCK: tl.constexpr):
    """``out = (x + y) / 2``, with a NaN at the element ``bad``."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = (tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)) * 0.5
    tl.store(out + offsets, tl.where(offsets == bad, float("nan"), value), mask=mask)


@triton.jit
def bias_(x, n, amount, bad, BLOCK: tl.constexpr):
    """``x += amount``, in place, with a NaN at the element ``bad``."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x + offsets, mask=mask) + amount
    tl.store(x + offsets, tl.where(offsets == bad, float("nan"), value), mask=mask)


@attrs.define
class Model:
    """24 launches: two streams, temporaries, in-place updates; it ends by cleaning its result.

    ``injected`` is the number of the launch that makes a NaN, in element 5; None: none does.
    """

    x: torch.Tensor
    out: torch.Tensor
    injected: int | None = None
    launched: int = 0

    @classmethod
    def on(cls, device: str, injected: int | None = None) -> Model:
        """The model with its input and output."""
        x = torch.linspace(1.0, 2.0, SIZE, device=device)
        return cls(x, torch.zeros_like(x), injected)

    LAUNCHES = 24

    def _bad(self) -> int:
        bad = 5 if self.launched == self.injected else -1
        self.launched += 1
        return bad

    def mix(self, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None):
        out = torch.empty_like(x) if out is None else out
        mix[(2,)](x, y, out, SIZE, self._bad(), BLOCK=32)
        return out

    def bias_(self, x: torch.Tensor, amount: float):
        bias_[(2,)](x, SIZE, amount, self._bad(), BLOCK=32)
        return x

    def block(self, x: torch.Tensor) -> torch.Tensor:
        """Six launches: three on a side stream beside two, then one that joins them."""
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            left = self.bias_(self.mix(x, x), 1.0)
            left = self.mix(left, x)
        right = self.bias_(self.mix(x, x), 0.5)
        main.wait_stream(side)
        return self.mix(left, right)

    def run(self) -> None:
        """All launches; what they made in between is freed, and the result holds no NaN."""
        self.launched = 0
        hidden = self.x
        for _ in range(3):
            hidden = self.block(hidden)
        for amount in (1.0, 2.0, 3.0, 4.0, 5.0):
            self.bias_(hidden, amount)
        self.mix(hidden, hidden, self.out)
        clean_[(2,)](self.out, SIZE, BLOCK=32)


def warmed(body: Callable[[], object]) -> None:
    """Runs the body once, so that its kernels are compiled and loaded."""
    body()
    torch.cuda.synchronize()
