"""Reading views: which memory may be touched, in which order, and what a lost device leaves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from lazytrace._capture.views import TensorView, Views
from lazytrace._device.runtime import HostRuntime, ReadError
from lazytrace._values.reading import ViewReader
from lazytrace.records import ArgState, TensorStats


class FakeRuntime(HostRuntime):
    """Reads nothing: remembers which views it was asked for."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[int] = []
        self.error = error

    def unreadable(self, view: TensorView) -> str | None:
        return None

    def cost(self, view: TensorView) -> int:
        return view.span

    def read(self, views: Sequence[TensorView]) -> list[TensorStats | Exception]:
        if self.error is not None:
            raise self.error
        self.asked += [view.id for view in views]
        return [TensorStats(min=0) for _ in views]


def _views(*sizes: int) -> tuple[list[torch.Tensor], list[TensorView]]:
    views = Views()
    tensors = [torch.zeros(size) for size in sizes]
    return tensors, [views.tensor(tensor) for tensor in tensors]


def test_the_smallest_are_read_first_and_the_rest_stays_due() -> None:
    """What exceeds the budget has no result yet, and the reason is given."""
    _kept, (large, small, middle) = _views(100, 1, 10)
    runtime = FakeRuntime()
    results, left = ViewReader(runtime, max_read_bytes=430).read([large, small, middle])
    assert runtime.asked == [small.id, middle.id]
    assert set(results) == {small.id, middle.id}
    assert left == "max_read_bytes"


def test_of_equal_size_written_arguments_come_first() -> None:
    """A kernel's outputs say more than its inputs."""
    _kept, (read, written) = _views(10, 10)
    runtime = FakeRuntime()
    ViewReader(runtime, max_read_bytes=40).read([read, written], {written.id})
    assert runtime.asked == [written.id]


def test_a_view_larger_than_the_budget_is_skipped() -> None:
    """It would stay due for ever."""
    _kept, (view,) = _views(100)
    results, left = ViewReader(FakeRuntime(), max_read_bytes=399).read([view])
    assert (results[view.id].state, results[view.id].reason) == ("skipped", "max_read_bytes")
    assert left is None


def test_an_empty_view_needs_no_device() -> None:
    """Zero elements: state empty, no error."""
    _kept, (view,) = _views(0)
    results, _ = ViewReader(FakeRuntime(), 1 << 20).read([view])
    assert results[view.id].state is ArgState.EMPTY


def test_a_freed_storage_is_expired() -> None:
    """Its address may belong to another tensor by now."""
    tensors, (view,) = _views(4)
    tensors.clear()
    results, _ = ViewReader(FakeRuntime(), 1 << 20).read([view])
    assert (results[view.id].state, results[view.id].reason) == ("expired", "storage_freed")


def test_a_storage_of_size_zero_is_expired() -> None:
    """FSDP frees parameters by resize_(0): the storage object lives, its memory does not."""
    (tensor,), (view,) = _views(4)
    tensor.untyped_storage().resize_(0)
    results, _ = ViewReader(FakeRuntime(), 1 << 20).read([view])
    assert (results[view.id].state, results[view.id].reason) == ("expired", "storage_freed")


def test_a_moved_storage_is_expired() -> None:
    """A storage that was resized has other memory than the launch saw."""
    (tensor,), (view,) = _views(4)
    tensor.untyped_storage().resize_(1 << 20)
    assert tensor.untyped_storage().data_ptr() != view.storage_ptr
    results, _ = ViewReader(FakeRuntime(), 1 << 20).read([view])
    assert (results[view.id].state, results[view.id].reason) == ("expired", "storage_moved")


def test_a_lost_device_fails_the_rest_and_is_not_asked_again() -> None:
    """After a sticky error every call fails: one probe, then everything left is failed with it."""
    _kept, (first, second) = _views(1, 2)
    runtime = FakeRuntime(error=ReadError("cuStreamSynchronize: ILLEGAL_ADDRESS", sticky=True))
    reader = ViewReader(runtime, 1 << 20)
    results, _ = reader.read([first])
    assert (results[first.id].state, results[first.id].reason) == (
        "failed",
        "cuStreamSynchronize: ILLEGAL_ADDRESS",
    )
    runtime.error = None
    results, _ = reader.read([second])
    assert results[second.id].state is ArgState.FAILED
    assert runtime.asked == []


def test_running_out_of_memory_is_not_the_end() -> None:
    """An error that may pass leaves everything due."""
    _kept, (view,) = _views(1)
    runtime = FakeRuntime(error=ReadError("cuMemAlloc_v2: OUT_OF_MEMORY", sticky=False))
    results, left = ViewReader(runtime, 1 << 20).read([view])
    assert results == {}
    assert left == "cuMemAlloc_v2: OUT_OF_MEMORY"


def test_a_view_that_cannot_be_read_says_why() -> None:
    """An unsupported dtype is that view's fault alone."""
    _kept, (good, bad) = _views(1, 2)

    class Picky(FakeRuntime):
        def read(self, views: Sequence[TensorView]) -> list[TensorStats | Exception]:
            return [TensorStats(), ValueError("packed")]

    results, _ = ViewReader(Picky(), 1 << 20).read([good, bad])
    assert results[good.id].state is ArgState.MATERIALIZED
    assert (results[bad.id].state, results[bad.id].reason) == ("skipped", "packed")


@pytest.mark.parametrize("shape", [(3,), (2, 3), ()])
def test_a_meta_tensor_is_never_read(shape: tuple[int, ...]) -> None:
    """It has metadata and no memory."""
    view = Views().tensor(torch.empty(shape, device="meta"))
    results, _ = ViewReader(FakeRuntime(), 1 << 20).read([view])
    assert (results[view.id].state, results[view.id].reason) == ("skipped", "no_memory")
