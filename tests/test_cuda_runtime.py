"""What of the CUDA runtime can be checked without CUDA."""

from __future__ import annotations

import ctypes
import sys

from lazytrace import _cuda_runtime


def _drop_a_reference(numbers: tuple[int, ...]) -> None:
    """What torch 2.11's memory_snapshot(pool) does to the pool's numbers."""
    for number in numbers:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(number))


def test_references_that_torch_drops_are_given_back() -> None:
    """The pool's ids are alive, with as many references as before."""
    pool = (int("100000"), int("200000"))
    before = [sys.getrefcount(pool[0]), sys.getrefcount(pool[1])]
    with _cuda_runtime._same_reference_counts(pool):
        _drop_a_reference(pool)
    assert [sys.getrefcount(pool[0]), sys.getrefcount(pool[1])] == before


def test_nothing_is_given_where_nothing_was_dropped() -> None:
    """A torch without the fault leaks nothing."""
    pool = (int("100000"), int("200000"))
    before = [sys.getrefcount(pool[0]), sys.getrefcount(pool[1])]
    with _cuda_runtime._same_reference_counts(pool):
        pass
    assert [sys.getrefcount(pool[0]), sys.getrefcount(pool[1])] == before
