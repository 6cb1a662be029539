"""Reads each view once: decides which memory may be touched, and within which budget."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

from lazytrace._capture.views import TensorView
from lazytrace._device.runtime import ReadError, Runtime, UnreadableBytes
from lazytrace._values.blobs import BlobError, BlobStore
from lazytrace._values.view_bytes import kept_bytes, total_bytes
from lazytrace.records import ArgState, Blob, Observation, Reading, TensorStats

_NO_OWNERS: Final[Mapping[int, str]] = MappingProxyType({})


@attrs.frozen
class ViewResult:
    """What became of one view's values, for every launch that passed it."""

    state: ArgState
    reason: str | None = None
    values: TensorStats | None = None
    data: Blob | None = None
    data_reason: str | None = None

    @property
    def was_read(self) -> bool:
        """Whether anything of the view's memory was read."""
        return self.state is ArgState.MATERIALIZED or self.data is not None

    def reading(self, observed: Observation | None) -> Reading:
        """The reading of an argument that is this view."""
        if not self.was_read:
            return Reading(self.state, self.reason, data_reason=self.data_reason)
        return Reading(
            self.state,
            self.reason,
            self.values,
            observed,
            data=self.data,
            data_reason=self.data_reason,
        )


# A view's cost in bytes and whether no launch has written it; the view; its storage, held alive.
_Readable = tuple[tuple[int, bool], TensorView, Any]


@attrs.define
class ViewReader:
    """Reads views through a runtime, at most ``max_read_bytes`` at a time.

    ``broken`` keeps the error of a device that will answer no more. ``blobs`` takes the bytes of
    what is read, where those are asked for; they count as read.
    """

    runtime: Runtime
    max_read_bytes: int
    broken: str | None = None
    blobs: BlobStore | None = None

    def read(
        self,
        views: Iterable[TensorView],
        written: Container[int] = (),
        owners: Mapping[int, str] = _NO_OWNERS,
    ) -> tuple[dict[int, ViewResult], str | None]:
        """Results by view id; what is missing stays due, for the reason in the second place.

        The smallest come first, and of the same size those that a launch has ``written``.
        ``owners`` are the kernels that the views' bytes are charged to.
        """
        results: dict[int, ViewResult] = {}
        readable: list[_Readable] = []
        for view in views:
            storage = view.alive()
            refused = self._refused(view, storage)
            if refused is not None:
                results[view.id] = refused
            else:
                order = (self._cost(view), view.id not in written)
                readable.append((order, view, storage))
        chosen, left = self._within_budget(readable, results)
        # `readable` holds the storages: none can be freed while it is read.
        failed = self._read(chosen, results)
        if self.blobs is not None and failed is None:
            for view in chosen:
                results[view.id] = self._with_data(
                    results[view.id], view, self.blobs, owners.get(view.id, "")
                )
        return results, failed or left

    def _refused(self, view: TensorView, storage: Any) -> ViewResult | None:
        """Why the memory of a view must not be read; None if it may."""
        if 0 in view.shape:
            return ViewResult(ArgState.EMPTY)
        if view.unreadable is not None:
            return ViewResult(ArgState.SKIPPED, view.unreadable)
        if storage is None:
            return ViewResult(ArgState.EXPIRED, "storage_freed")
        try:
            pointer, size = storage.data_ptr(), storage.nbytes()
        except RuntimeError as error:  # cudagraph trees forbid access to what a later run reuses
            return ViewResult(ArgState.EXPIRED, f"access refused: {str(error).splitlines()[0]}")
        if pointer != view.storage_ptr:
            return ViewResult(ArgState.EXPIRED, "storage_freed" if not size else "storage_moved")
        if size < view.data_ptr - pointer + view.span:
            return ViewResult(ArgState.EXPIRED, "storage_shrunk")
        unreadable = self.runtime.unreadable(view)
        return None if unreadable is None else ViewResult(ArgState.SKIPPED, unreadable)

    def _cost(self, view: TensorView) -> int:
        return self.runtime.cost(view) + self._data_bytes(view)

    def _data_bytes(self, view: TensorView) -> int:
        """How many bytes of a view are to be kept; none at the cost of its statistics."""
        if self.blobs is None:
            return 0
        room = max(0, self.max_read_bytes - self.runtime.cost(view))
        return kept_bytes(view, min(self.blobs.limit, room))

    def _within_budget(
        self, readable: list[_Readable], results: dict[int, ViewResult]
    ) -> tuple[list[TensorView], str | None]:
        readable.sort(key=lambda entry: entry[0])
        chosen: list[TensorView] = []
        left = None
        total = 0
        for (cost, _), view, _ in readable:
            if cost > self.max_read_bytes:
                results[view.id] = ViewResult(ArgState.SKIPPED, "max_read_bytes")
            elif total + cost > self.max_read_bytes:
                left = "max_read_bytes"
            else:
                total += cost
                chosen.append(view)
        return chosen, left

    def _read(self, views: list[TensorView], results: dict[int, ViewResult]) -> str | None:
        """Adds the results of these views; what made it impossible for now, if anything did."""
        if not views:
            return None
        outcomes: list[TensorStats | Exception] = []
        if self.broken is None:
            try:
                outcomes = self.runtime.read(views)
            except ReadError as error:
                if not error.sticky:
                    return str(error)
                self.broken = str(error)
        if self.broken is not None:
            failed = ViewResult(ArgState.FAILED, self.broken)
            results.update(dict.fromkeys((view.id for view in views), failed))
            return None
        for view, outcome in zip(views, outcomes):
            if isinstance(outcome, TensorStats):
                results[view.id] = ViewResult(ArgState.MATERIALIZED, None, outcome)
            else:
                results[view.id] = ViewResult(ArgState.SKIPPED, str(outcome))
        return None

    def _with_data(
        self, result: ViewResult, view: TensorView, blobs: BlobStore, kernel: str
    ) -> ViewResult:
        """The result with the bytes that were kept, or with the reason why none were."""
        wanted = self._data_bytes(view)
        reason = self.broken or blobs.refusal(kernel, wanted)
        if not wanted:
            reason = "max_read_bytes or save_tensors leaves no room for an element"
        if reason is None:
            try:
                data = self.runtime.read_bytes(view, wanted)
                return attrs.evolve(result, data=blobs.keep(kernel, data, total_bytes(view)))
            except (UnreadableBytes, BlobError) as error:
                reason = str(error)
            except ReadError as error:
                reason = str(error)
                self.broken = reason if error.sticky else None
        blobs.refused(reason)
        return attrs.evolve(result, data_reason=reason)
