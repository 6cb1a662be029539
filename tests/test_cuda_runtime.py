"""What of the CUDA runtime can be checked without CUDA."""

from __future__ import annotations

import ctypes
import sys
import threading

import pytest
import torch

from lazytrace._device import cuda_runtime as _cuda_runtime
from lazytrace._device.cuda_driver import CudaDriver


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


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> _cuda_runtime.CudaRuntime:
    """A runtime whose current stream is number 7 of torch's pool, handle 0x700."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentStream", lambda _: (7, 0, 1), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0x700, raising=False)
    driver = CudaDriver(None)
    return _cuda_runtime.CudaRuntime(driver, driver.is_capturing)


def _note_on_another_thread(runtime: _cuda_runtime.CudaRuntime) -> None:
    thread = threading.Thread(target=runtime.note_stream, args=(0, 0x700))
    thread.start()
    thread.join()


def test_a_stream_of_one_thread_may_be_asked_by_it(runtime) -> None:
    """The thread that uses a stream is the only one that could be capturing on it."""
    runtime.note_stream(0, 0x700)
    runtime.note_stream(0, 0x700)
    assert runtime._users == {(0, 0x700): threading.get_ident()}


def test_a_stream_of_two_living_threads_belongs_to_several(runtime) -> None:
    """From then on no flush touches it: either thread may begin a capture at any moment."""
    runtime.note_stream(0, 0x700)
    _note_on_another_thread(runtime)
    assert runtime._users == {(0, 0x700): _cuda_runtime._SEVERAL}
    runtime.note_stream(0, 0x700)
    assert runtime._users == {(0, 0x700): _cuda_runtime._SEVERAL}


def test_a_stream_passes_from_a_dead_thread_to_the_next(runtime) -> None:
    """torch hands its 32 pool streams out again and again; dead threads begin no captures."""
    _note_on_another_thread(runtime)
    runtime.note_stream(0, 0x700)
    assert runtime._users == {(0, 0x700): threading.get_ident()}


def test_another_librarys_stream_is_never_asked(runtime, monkeypatch) -> None:
    """torch's wrapper of it has the handle for its id; it may be destroyed before a flush."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentStream", lambda _: (0x700, 0, 1))
    runtime.note_stream(0, 0x700)
    assert runtime._users == {}
