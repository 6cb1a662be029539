"""Merging parts on the host gives what one pass over the whole would."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazytrace._statistics.combine import FloatSum, IntegerSum
from lazytrace.records import TensorStats

_NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def float_sum(values: list[float], cuts: list[int], scale: int = 0) -> FloatSum:
    total = FloatSum()
    edges = sorted({0, len(values), *(cut % (len(values) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        part = values[start:end]
        mean = math.fsum(part) / len(part)
        m2 = math.fsum((value - mean) ** 2 for value in part)
        down = scale if start else 0
        total.add(
            len(part),
            min(part),
            max(part),
            math.ldexp(mean, -down),
            math.ldexp(m2, -2 * down),
            down,
        )
    return total


@given(st.lists(_NUMBERS, min_size=2, max_size=50), st.lists(st.integers(0, 50)))
def test_parts_of_floats_merge_into_the_whole(values: list[float], cuts: list[int]) -> None:
    """Wherever the values are cut, also where later parts are in other units."""
    for scale in (0, 30, -30):
        found = float_sum(values, cuts, scale).stats(1)
        spread = max(values) - min(values)
        assert (found.min, found.max) == (min(values), max(values))
        assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-12 * (spread + 1e-9))
        assert found.std == pytest.approx(statistics.stdev(values), abs=1e-9 * (spread + 1e-3))


@given(
    st.lists(st.integers(-(2**63), 2**64), min_size=1, max_size=40),
    st.integers(0, 40),
    st.integers(1, 5),
)
def test_parts_of_integers_merge_exactly(values: list[int], cut: int, repeats: int) -> None:
    """Range, zeros and the mean to the last bit; each element occurs ``repeats`` times."""
    total = IntegerSum()
    for part in (values[:cut], values[cut:]):
        if part:
            mean = sum(part) / len(part)
            m2 = math.fsum((value - mean) ** 2 for value in part)
            total.add(len(part), min(part), max(part), sum(part), m2, part.count(0))
    found = total.stats(repeats)
    assert (found.min, found.max) == (min(values), max(values))
    assert found.mean == sum(values) / len(values)
    assert found.zero_count == values.count(0) * repeats
    if len(values) * repeats > 1:
        wanted = statistics.stdev(map(float, values * repeats))
        assert found.std == pytest.approx(wanted, rel=1e-6, abs=1e4)


def test_moments_at_the_ends_of_float64() -> None:
    """A scale keeps squares in range; a deviation that has no float64 is infinite."""
    total = FloatSum()
    for value in (1.5e308, -1.5e308):
        total.add(1, value, value, math.ldexp(value, -600), 0.0, 600)
    assert total.stats(1) == TensorStats(-1.5e308, 1.5e308, 0.0, math.inf)


def test_negation_swaps_ends_and_infinities() -> None:
    """A lazily negated view has the negatives' statistics."""
    total = FloatSum()
    total.add(2, 1.0, 3.0, 2.0, 2.0)
    total.counts.add(nan=1, posinf=2, neginf=3, first=7)
    assert total.stats(1, negated=True) == TensorStats(
        -3.0, -1.0, -2.0, math.sqrt(2.0), 1, 3, 2, 0, 7
    )
