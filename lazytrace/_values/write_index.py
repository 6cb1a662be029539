"""Finds the last launch that may have written a range of memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from heapq import heappop, heappush

import attrs

NO_LAUNCH = -1
_FEW = 16


@attrs.define(eq=False)
class WriteIndex:
    """The last writer of each byte, as ranges: from ``_bounds[i]`` on it is ``_writers[i]``.

    Building takes O(n log n) for n writes. A query takes O(log n): the maximum over a wide range
    comes from a table of maxima over powers of two, built when it is first needed.
    """

    _bounds: list[int]
    _writers: list[int]
    _maxima: list[list[int]] = attrs.field(factory=list)

    @classmethod
    def of(cls, writes: Iterable[tuple[int, int, int]]) -> WriteIndex:
        """The index of (first address, address behind the last byte, launch id)."""
        latest: dict[tuple[int, int], int] = {}
        for start, end, launch in writes:
            if start < end and launch > latest.get((start, end), NO_LAUNCH):
                latest[start, end] = launch
        bounds: list[int] = []
        writers: list[int] = []
        covering: list[tuple[int, int]] = []  # a heap of (minus the launch, end)
        ranges = sorted((start, end, launch) for (start, end), launch in latest.items())
        following = 0
        for bound in sorted({edge for span in latest for edge in span}):
            while following < len(ranges) and ranges[following][0] == bound:
                _, end, launch = ranges[following]
                heappush(covering, (-launch, end))
                following += 1
            while covering and covering[0][1] <= bound:
                heappop(covering)
            writer = -covering[0][0] if covering else NO_LAUNCH
            if not writers or writers[-1] != writer:
                bounds.append(bound)
                writers.append(writer)
        return cls(bounds, writers)

    def last_writer(self, start: int, end: int) -> int:
        """The last launch that may have written a byte of [start, end), or NO_LAUNCH."""
        bounds = self._bounds
        first = bisect_right(bounds, start) - 1
        if first < 0:
            first = 0
        last = bisect_left(bounds, end, first)
        if start >= end or first >= last:
            return NO_LAUNCH
        if last - first == 1:
            return self._writers[first]
        if last - first <= _FEW:
            return max(self._writers[first:last])
        return self._maximum(first, last)

    def _maximum(self, first: int, last: int) -> int:
        if not self._maxima:
            level, width = self._writers, 1
            while level:
                self._maxima.append(level)
                level, width = list(map(max, level, level[width:])), 2 * width
        power = (last - first).bit_length() - 1
        level = self._maxima[power]
        return max(level[first], level[last - (1 << power)])
