"""Values that kernels compute in the simulator, and the language it patches meanwhile."""

from __future__ import annotations

import threading

import case_kernels
import kernels
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from lazytrace.testing import simulate

pytestmark = pytest.mark.core

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def simulation():
    with simulate() as running:
        yield running


@triton.jit
def atomic_sum(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.atomic_add(out + offsets * 0, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def choose(out, flag):
    tl.store(out, tl.where(flag, 7, 9))


@triton.jit
def ratio(x, y, out):
    tl.store(out, tl.load(x) / tl.load(y))


def test_axpy():
    """Several programs, a mask, a scalar and a device function."""
    x, y, out = torch.randn(1000), torch.randn(1000), torch.zeros(1000)
    kernels.axpy[(4,)](x, y, out, 1000, 2.0, BLOCK=256)
    assert torch.equal(out, 2.0 * x + y)


def test_softmax():
    """Reductions and exponentials, row by row."""
    x = torch.randn(3, 100)
    out = torch.empty_like(x)
    kernels.softmax[(3,)](x, out, x.stride(0), 100, BLOCK=128)
    torch.testing.assert_close(out, x.softmax(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matmul(dtype):
    """A loop and tl.dot over a two-dimensional grid."""
    a, b = torch.randn(20, 40).to(dtype), torch.randn(40, 24).to(dtype)
    c = torch.empty(20, 24)
    kernels.matmul[(2, 2)](
        a, b, c, 20, 24, 40, *a.stride(), *b.stride(), *c.stride(), BM=16, BN=16, BK=16
    )
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-4, atol=1e-4)


def test_tuple_and_namedtuple():
    """Tensors and scalars inside tuples reach the kernel."""
    x, y, out = torch.randn(8), torch.randn(8), torch.zeros(8)
    kernels.weighted_sum[(1,)]((x, y), out, (2.0, 3.0), 8, BLOCK=8)
    assert torch.equal(out, 2.0 * x + 3.0 * y)
    kernels.difference[(1,)](kernels.Pair(x, y), out, 8, BLOCK=8)
    assert torch.equal(out, x - y)


def test_tensor_descriptor():
    """A host descriptor loads the tile of its base."""
    base, out = torch.arange(32 * 32.0).view(32, 32), torch.zeros(16, 16)
    descriptor = TensorDescriptor.from_tensor(base, [16, 16])
    kernels.doubled_tile[(1,)](descriptor, out, ROWS=16, COLUMNS=16)
    assert torch.equal(out, 2 * base[:16, :16])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_are_exact(dtype):
    """Loads and stores keep every bit, in every dtype."""
    bits = torch.arange(64, dtype=torch.uint8).repeat(dtype.itemsize)
    x = (bits % 2).bool()[:64] if dtype is torch.bool else bits.view(dtype)
    out = torch.zeros_like(x)
    kernels.copy[(1,)](x, out, 64, BLOCK=64)
    assert torch.equal(out.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e5m2, torch.float8_e4m3fn], ids=str
)
def test_conversions_round_to_nearest(dtype):
    """Storing float32 into a small dtype and loading it back is what torch does."""
    x = torch.randn(100)
    x[:3] = torch.tensor([1.01171875, 0.0, -1.5])
    small, back = torch.zeros(100).to(dtype), torch.zeros(100)
    kernels.copy[(1,)](x, small, 100, BLOCK=128)
    kernels.copy[(1,)](small, back, 100, BLOCK=128)
    assert torch.equal(small.float(), x.to(dtype).float())
    assert torch.equal(back, x.to(dtype).float())


def test_bfloat16_arithmetic():
    """Each operation rounds once, as torch's does."""
    x, y = torch.randn(100).bfloat16(), torch.randn(100).bfloat16()
    out = torch.empty_like(x)
    kernels.axpy[(1,)](x, y, out, 100, 2.5, BLOCK=128)
    assert torch.equal(out, x * 2.5 + y)


def test_bfloat16_atomics_are_refused():
    """What would give wrong values raises instead."""
    x = torch.ones(8).bfloat16()
    with pytest.raises(NotImplementedError, match="convert to float32"):
        atomic_sum[(1,)](x, torch.zeros(1).bfloat16(), 8, BLOCK=8)


def test_division_by_zero_warns_nobody():
    """A kernel may divide by zero with warnings as errors, as on a GPU."""
    x, out = torch.tensor([1.0]), torch.zeros(1)
    ratio[(1,)](x, torch.zeros(1), out)
    assert out.item() == float("inf")
    ratio[(1,)](torch.zeros(1), torch.zeros(1), out)
    assert out.isnan().item()


def test_kernel_with_a_closure():
    """A kernel defined in a function sees the names around it."""

    @triton.jit
    def twice(value):
        return value * 2

    @triton.jit
    def local(x):
        tl.store(x, twice(tl.load(x)))

    x = torch.tensor([3.0])
    local[(1,)](x)
    assert x.item() == 6.0


def test_a_bool_argument_is_executed():
    """A flag passed to a kernel is legal on every Triton, and chooses what the kernel does."""
    case_kernels.ignore[(1,)](torch.ones(2), True, 5)
    out = torch.zeros(1, dtype=torch.int32)
    for flag in (True, False):
        choose[(1,)](out, flag)
        assert out.item() == (7 if flag else 9)


@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9),
    reason="Triton compiles keyword-only parameters from 3.9 on",
)
def test_variadic_and_keyword_only_parameters():
    """A kernel gets ``*tensors`` and what follows a star as its signature says."""

    @triton.jit
    def total(out, *tensors, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(out + offsets, tl.load(tensors[0] + offsets) + tl.load(tensors[1] + offsets))

    out = torch.zeros(4)
    total[(1,)](out, torch.ones(4), torch.full((4,), 2.0), BLOCK=4)
    assert out.tolist() == [3.0] * 4


def test_autotuned_kernel():
    """Triton's autotuner runs its trials and then the best configuration."""
    tuned = triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], ["n"])(
        kernels.copy
    )
    x, out = torch.randn(100), torch.zeros(100)
    tuned[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, out, 100)
    assert torch.equal(out, x)


def test_language_is_as_before_after_a_run():
    """The interpreter's patches are there during a run only."""
    before = dict(vars(tl)), dict(vars(tl.core)), dict(vars(tl.tensor)), vars(tl.math).copy()
    kernels.copy[(1,)](torch.ones(4), torch.zeros(4), 4, BLOCK=4)
    assert (vars(tl), vars(tl.core), dict(vars(tl.tensor)), vars(tl.math)) == before


def test_a_failing_kernel_leaves_no_patch():
    """The language is given back although the kernel raised."""

    @triton.jit
    def fails(x):
        tl.static_assert(x is not None)
        tl.store(x, missing(tl.load(x)))  # noqa: F821  # compiled never: see below

    before = dict(vars(tl))
    with pytest.raises(Exception, match="missing"):
        fails[(1,)](torch.ones(1))
    assert vars(tl) == before


def test_threads_run_and_compile_at_once():
    """A kernel compiled by one thread while another interprets comes out right."""
    x, out = torch.ones(64), torch.zeros(64)
    errors = []

    def run():
        try:
            for _ in range(20):
                kernels.copy[(4,)](x, out, 64, BLOCK=16)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    for block in (32, 64):
        scaled = torch.ones(64)
        kernels.scale_[(2,)](scaled, 64, 3.0, BLOCK=block)
        assert scaled.tolist() == [3.0] * 64
    thread.join()
    assert errors == []
    assert torch.equal(out, x)
