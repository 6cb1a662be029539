"""Merges the statistics of a view's parts into those of the whole, on the host.

Floats are merged by Chan's update of mean and sum of squared deviations. Integers carry their
exact sum. ``repeats`` is how often each element occurs in the logical view.
"""

from __future__ import annotations

from math import inf, ldexp, sqrt

import attrs

from lazytrace.records import TensorStats


@attrs.define
class Counts:
    """What floating-point elements are besides finite and not zero."""

    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zero: int = 0
    first: int | None = None

    def add(self, nan: int, posinf: int, neginf: int, first: int | None) -> None:
        """Counts one part's elements that are not finite; ``first`` is the first one's index."""
        self.nan += nan
        self.posinf += posinf
        self.neginf += neginf
        if first is not None and (self.first is None or first < self.first):
            self.first = first


@attrs.define
class FloatSum:
    """Moments of the finite elements seen so far, in units of 2 ** ``scale``.

    The scale keeps squares of very large and very small float64 values inside float64.
    """

    counts: Counts = attrs.field(factory=Counts)
    n: int = 0
    min: float = inf
    max: float = -inf
    mean: float = 0.0
    m2: float = 0.0
    scale: int = 0

    def add(self, n: int, low: float, high: float, mean: float, m2: float, scale: int = 0) -> None:
        """Merges ``n`` finite elements whose mean and sum of squared deviations are scaled."""
        if n == 0:
            return
        self.min = min(self.min, low)
        self.max = max(self.max, high)
        if self.n == 0:
            self.n, self.mean, self.m2, self.scale = n, mean, m2, scale
            return
        if scale != self.scale:
            mean, m2 = self._to_common_scale(mean, m2, scale)
        total = self.n + n
        delta = mean - self.mean
        self.mean += delta * (n / total)
        self.m2 += m2 + delta * delta * (self.n * (n / total))
        self.n = total

    def _to_common_scale(self, mean: float, m2: float, scale: int) -> tuple[float, float]:
        down = self.scale - scale
        if down > 0:
            return ldexp(mean, -down), ldexp(m2, -2 * down)
        self.mean = ldexp(self.mean, down)
        self.m2 = ldexp(self.m2, 2 * down)
        self.scale = scale
        return mean, m2

    def stats(self, repeats: int, *, negated: bool = False) -> TensorStats:
        """The whole's statistics; those of the negatives where ``negated``."""
        counts = self.counts
        low, high, mean, std = self._moments(repeats)
        posinf, neginf = counts.posinf * repeats, counts.neginf * repeats
        if negated:
            posinf, neginf = neginf, posinf
            if low is not None and high is not None and mean is not None:
                low, high, mean = -high, -low, -mean
        return TensorStats(
            low,
            high,
            mean,
            std,
            counts.nan * repeats,
            posinf,
            neginf,
            counts.zero * repeats,
            counts.first,
        )

    def _moments(
        self, repeats: int
    ) -> tuple[float | None, float | None, float | None, float | None]:
        if self.n == 0:
            return None, None, None, None
        mean = min(max(ldexp(self.mean, self.scale), self.min), self.max)
        n = self.n * repeats
        if n < 2:
            return self.min, self.max, mean, None
        deviation = sqrt(max(self.m2, 0.0) / self.n * (n / (n - 1)))
        try:
            std = ldexp(deviation, self.scale)
        except OverflowError:
            std = inf
        return self.min, self.max, mean, std


@attrs.define
class IntegerSum:
    """Exact sum and range, and squared deviations, of the integers seen so far."""

    n: int = 0
    zero: int = 0
    min: int = 0
    max: int = 0
    total: int = 0
    m2: float = 0.0

    def add(self, n: int, low: int, high: int, total: int, m2: float, zero: int) -> None:
        """Merges ``n`` integers whose sum is ``total``."""
        if n == 0:
            return
        if self.n == 0:
            self.n, self.zero, self.min, self.max = n, zero, low, high
            self.total, self.m2 = total, m2
            return
        self.min = min(self.min, low)
        self.max = max(self.max, high)
        delta = (total * self.n - self.total * n) / (self.n * n)
        self.m2 += m2 + delta * delta * (self.n * (n / (self.n + n)))
        self.n += n
        self.total += total
        self.zero += zero

    def stats(self, repeats: int) -> TensorStats:
        """The whole's statistics."""
        if self.n == 0:
            return TensorStats()
        n = self.n * repeats
        std = sqrt(self.m2 / self.n * (n / (n - 1))) if n > 1 else None
        mean = self.total / self.n
        return TensorStats(self.min, self.max, mean, std, zero_count=self.zero * repeats)


@attrs.define
class Integer64Sum(IntegerSum):
    """Integers that are read less ``bias``: 2 ** 63 for unsigned ones."""

    bias: int = 0


@attrs.define
class ComplexSum:
    """The two parts of complex elements, and what the elements are as a whole."""

    counts: Counts = attrs.field(factory=Counts)
    real: FloatSum = attrs.field(factory=FloatSum)
    imag: FloatSum = attrs.field(factory=FloatSum)

    def stats(self, repeats: int) -> TensorStats:
        """The whole's statistics. Infinite counts are of elements with such a part."""
        return TensorStats(
            nan_count=self.counts.nan * repeats,
            posinf_count=self.counts.posinf * repeats,
            neginf_count=self.counts.neginf * repeats,
            zero_count=self.counts.zero * repeats,
            first_nonfinite_index=self.counts.first,
            real=self.real.stats(repeats),
            imag=self.imag.stats(repeats),
        )
