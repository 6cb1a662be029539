"""The CPU engine against statistics computed element by element in Python."""

from __future__ import annotations

import random

import pytest
import torch
from statistics_cases import DTYPES, difference, reference, region_of, view

from lazytrace._statistics import Region, UnsupportedDtype, reading_cost
from lazytrace._statistics.region import MisalignedView
from lazytrace._statistics.torch_engine import OutOfBounds, TorchEngine
from lazytrace.records import TensorStats

# torch warns once that its complex32 is experimental: the cases are views of such memory.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")


def read(tensor: torch.Tensor) -> TensorStats | Exception:
    return TorchEngine().read([region_of(tensor)], [tensor.untyped_storage()])[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_views_have_the_reference_statistics(dtype: str) -> None:
    """Any shape, strides, offset, overlap and special values of every readable dtype."""
    rng = random.Random(dtype)
    cases = [view(rng, dtype, 6000) for _ in range(10)]
    integral = not (getattr(torch, dtype).is_floating_point or getattr(torch, dtype).is_complex)
    assert [difference(read(case), reference(case), integral) for case in cases] == [""] * 10


def test_pieces_of_a_large_view_merge_into_the_whole() -> None:
    """A view of several pieces has the whole's statistics and the first bad element's index."""
    tensor = torch.linspace(999, 1001, 700_001).t()[1:]
    tensor[654_321] = torch.inf
    found = read(tensor)
    assert isinstance(found, TensorStats)
    finite = tensor[tensor.isfinite()].double()
    assert found.mean == pytest.approx(float(finite.mean()), abs=1e-9)
    assert found.std == pytest.approx(float(finite.std()), rel=1e-9)
    assert found.first_nonfinite_index == 654_321


def test_integers_beyond_float64_are_exact() -> None:
    """2 ** 53 + 1 and the unsigned maximum are not rounded; the mean is the nearest float64."""
    assert read(torch.tensor([2**53 + 1, -(2**63)])) == TensorStats(
        -(2**63), 2**53 + 1, (2**53 + 1 - 2**63) / 2, pytest.approx(6.5282807e18, rel=1e-6)
    )
    found = read(torch.tensor([2**64 - 1, 2**64 - 1], dtype=torch.uint64))
    assert found == TensorStats(2**64 - 1, 2**64 - 1, float(2**64 - 1), 0.0)


def test_an_expanded_view_costs_what_lies_beneath_it() -> None:
    """A stride-0 dimension multiplies the counts and nothing else, up to 2 ** 40 elements."""
    tensor = torch.tensor([[0.0], [torch.nan]]).expand(2, 1 << 39)
    found = read(tensor)
    assert found == TensorStats(
        0.0, 0.0, 0.0, 0.0, 1 << 39, zero_count=1 << 39, first_nonfinite_index=1 << 39
    )
    assert reading_cost(region_of(tensor)) == 8
    assert reading_cost(region_of(torch.empty(8).as_strided((4, 4), (1, 1)))) == 64


def test_complex_counts_are_of_elements_in_which_either_part_is_bad() -> None:
    """One element may count as NaN and as infinite; zero needs both parts; conj is honoured."""
    tensor = torch.tensor([0j, complex(torch.nan, torch.inf), 1 + 2j, complex(0, -torch.inf)])
    found = read(tensor.conj())
    assert isinstance(found, TensorStats)
    assert (found.min, found.mean, found.zero_count, found.nan_count) == (None, None, 1, 1)
    assert (found.posinf_count, found.neginf_count, found.first_nonfinite_index) == (1, 1, 1)
    assert found.imag is not None
    assert (found.imag.min, found.imag.posinf_count, found.imag.neginf_count) == (-2.0, 1, 1)


def test_empty_and_single_elements() -> None:
    """No elements: nothing but zeros; one element: no deviation."""
    assert read(torch.empty(3, 0)) == TensorStats()
    assert read(torch.tensor(2.5)) == TensorStats(2.5, 2.5, 2.5, None)


@pytest.mark.parametrize("dtype", ["float4_e2m1fn_x2", "uint4", "bits8", "qint8", "float3"])
def test_an_unreadable_dtype_says_why(dtype: str) -> None:
    """Packed, quantised and unknown types are errors of their own, in place of the statistics."""
    memory = torch.zeros(4, dtype=torch.uint8)
    region = Region(memory.data_ptr(), (4,), (1,), dtype, 1)
    (found,) = TorchEngine().read([region], [memory.untyped_storage()])
    assert isinstance(found, UnsupportedDtype)
    assert dtype in str(found)


def test_a_view_beyond_its_storage_is_refused_and_the_storage_not_grown() -> None:
    """torch's own set_ would grow the user's storage."""
    memory = torch.zeros(4)
    region = Region(memory.data_ptr(), (5,), (1,), "float32", 4)
    odd = Region(memory.data_ptr() + 2, (1,), (1,), "float32", 4)
    storage = memory.untyped_storage()
    found = TorchEngine().read([region, odd], [storage, storage])
    assert [type(error) for error in found] == [OutOfBounds, MisalignedView]
    assert storage.nbytes() == 16


def test_no_mode_of_the_programs_is_used_or_left_changed() -> None:
    """Default device, default dtype, inference mode, autocast and the RNG do not matter."""
    tensor = torch.arange(4.0)
    state = torch.get_rng_state()
    with torch.inference_mode(), torch.device("meta"), torch.autocast("cpu"):
        found = read(tensor)
        assert torch.is_inference_mode_enabled()
        assert torch.empty(1).device.type == "meta"
    assert found == TensorStats(0.0, 3.0, 1.5, pytest.approx(1.2909944), zero_count=1)
    assert torch.equal(state, torch.get_rng_state())
