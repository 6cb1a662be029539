"""Measures alternatives in interleaved rounds, and says how far the figures scatter."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs


@attrs.frozen
class Spread:
    """The median of repeated measurements, and their 5th and 95th percentile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), _quantile(ordered, 0.05), _quantile(ordered, 0.95))

    def covers(self, value: float) -> bool:
        """Whether a value lies between the percentiles."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f} {self.high:.3f}]"


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the order statistics."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def interleave(
    variants: Mapping[str, Callable[[], dict[str, float]]], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Runs every variant once a round, and returns its figures by variant and key.

    The i-th figures of all variants are of one round. The order turns round by round, so that a
    drift of the machine, or what one variant leaves to the next, falls on all of them.
    """
    names = list(variants)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for turn in range(rounds):
        shift = turn % len(names)
        order = names[shift:] + names[:shift]
        for name in reversed(order) if turn % 2 else order:
            for key, value in variants[name]().items():
                found[name].setdefault(key, []).append(value)
    return found


def ratios(values: Sequence[float], base: Sequence[float]) -> Spread:
    """The spread of the ratios of figures that were taken in the same rounds."""
    return Spread.of([value / reference for value, reference in zip(values, base)])


@contextmanager
def no_collection() -> Iterator[None]:
    """Python's garbage collector runs before the block, and not inside it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
