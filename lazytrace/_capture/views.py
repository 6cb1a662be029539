"""Views of storages: what a tensor argument was at its launch, by host reads only.

A tensor is remembered by a weak reference to its storage, never to itself: a view made for the
launch dies right after it, and a weak reference to a tensor makes `torch.utils.swap_tensors` raise
in the user's program. While a storage lives, its Python wrapper and the wrapper's one shared
weak reference are the same objects, so identity tells one storage from another.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterator
from typing import Any

import attrs
import torch

from lazytrace._capture import opaque as _opaque
from lazytrace.records import TensorArg

_FIRST_SWEEP = 1024
_MAX_VIEWS = 4096
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)


@attrs.define(eq=False)
class StorageEntry:
    """One storage: its number in the trace, and the views of it seen so far."""

    number: int
    ref: weakref.ref[Any]
    views: dict[tuple[Any, ...], TensorView] = attrs.field(factory=dict)


@attrs.define(eq=False)
class TensorView:
    """One tensor argument as the launch saw it: a region of a weakly held storage.

    Never changed once made (not frozen: that would double the time to make one, per launch).
    ``ref`` gives the storage while it lives; it is None for memory that no storage stands for.
    ``storage_ptr`` is the storage's own address; ``span`` the bytes from the view's first to its
    last element.
    """

    id: int
    ref: weakref.ref[Any] | None
    storage: int
    storage_ptr: int
    cls: Any
    data_ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: Any
    element_size: int
    device_type: str
    device_index: int
    unreadable: str | None = None  # why its values can never be read
    plain: bool = True  # its class does not intercept what tells one view from another
    _arg: TensorArg | None = None

    def alive(self) -> Any:
        """The storage, held alive by the caller from now on; None if it is gone."""
        storage = None if self.ref is None else self.ref()
        if storage is not None:
            storage._fix_weakref()  # else torch may free its memory under our reference
        return storage

    @property
    def numel(self) -> int:
        """Logical elements."""
        return math.prod(self.shape)

    @property
    def span(self) -> int:
        """Bytes from the first to the last element, inclusive; 0 for an empty view."""
        if 0 in self.shape:
            return 0
        elements = 1
        for size, step in zip(self.shape, self.strides):
            elements += (size - 1) * abs(step)
        return elements * self.element_size

    def as_arg(self) -> TensorArg:
        """The finished description; its values come later."""
        if self._arg is not None:
            return self._arg
        device = self.device_type
        self._arg = TensorArg(
            type=self.cls.__name__,
            shape=tuple(map(int, self.shape)),
            strides=tuple(map(int, self.strides)),
            dtype=_opaque.dtype_name(self.dtype),
            device=device if device in ("cpu", "meta") else f"{device}:{self.device_index}",
            storage_offset=self.offset,
            data_ptr=self.data_ptr,
            numel=self.numel,
            element_size=self.element_size,
            nbytes=self.span,
            storage=self.storage,
        )
        return self._arg


@attrs.define
class Views:
    """The storages and views seen so far; dead storages are swept as new ones come."""

    _storages: dict[int, StorageEntry] = attrs.field(factory=dict)
    _storage_ids: Iterator[int] = attrs.field(factory=itertools.count)
    _view_ids: Iterator[int] = attrs.field(factory=itertools.count)
    _sweep_at: int = _FIRST_SWEEP

    def tensor(self, tensor: torch.Tensor) -> TensorView:
        """The view that a tensor is; the same object for the same view."""
        if _opaque.is_abstract(tensor):
            return self._abstract(tensor)
        storage = tensor.untyped_storage()
        ref = weakref.ref(storage)
        entry = self._storages.get(id(ref))
        if entry is None:
            entry = self._new_storage(ref)
        shape = tuple(tensor.shape)
        strides = tensor.stride()
        pointer = tensor.data_ptr()
        key = (pointer, shape, strides, tensor.dtype, tensor.__class__)
        view = entry.views.get(key)
        if view is None:
            if len(entry.views) >= _MAX_VIEWS:
                entry.views.clear()
            offset = int(tensor.storage_offset())
            size = tensor.element_size()
            device = tensor.device
            view = entry.views[key] = TensorView(
                next(self._view_ids),
                ref,
                entry.number,
                pointer - offset * size,
                tensor.__class__,
                pointer,
                shape,
                strides,
                offset,
                tensor.dtype,
                size,
                device.type,
                device.index or 0,
                plain=tensor.__class__ in _PLAIN_CLASSES,
            )
        return view

    def _abstract(self, tensor: torch.Tensor) -> TensorView:
        """A meta or fake tensor: metadata without memory."""
        return TensorView(
            next(self._view_ids),
            None,
            next(self._storage_ids),
            0,
            tensor.__class__,
            0,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.dtype,
            tensor.element_size(),
            tensor.device.type,
            tensor.device.index or 0,
            unreadable="no_memory",
        )

    def duck(self, arg: Any) -> TensorView:
        """The view of an object with data_ptr(), over its base's storage if it wraps a tensor."""
        base = getattr(arg, "base", None)
        dtype = getattr(arg, "dtype", None)
        pointer = int(arg.data_ptr())
        if isinstance(base, torch.Tensor):
            return self._wrapped(self.tensor(base), type(arg), pointer, dtype)
        shape = _opaque.ints(getattr(arg, "shape", None)) or ()
        return TensorView(
            next(self._view_ids),
            None,
            next(self._storage_ids),
            pointer,
            type(arg),
            pointer,
            shape,
            _opaque.contiguous_strides(shape),
            0,
            dtype,
            _opaque.itemsize(dtype, 1),
            str(getattr(getattr(arg, "device", None), "type", "unknown")),
            0,
            unreadable="no_storage",
            plain=False,
        )

    def _wrapped(self, base: TensorView, cls: Any, pointer: int, dtype: Any) -> TensorView:
        """The view of a wrapper of a tensor; the same object for the same wrapping."""
        entry = None if base.ref is None else self._storages.get(id(base.ref))
        key = (base.id, cls, pointer, str(dtype))
        view = None if entry is None else entry.views.get(key)
        if view is None:
            same_size = _opaque.itemsize(dtype, base.element_size) == base.element_size
            view = attrs.evolve(
                base,
                id=next(self._view_ids),
                cls=cls,
                data_ptr=pointer,
                dtype=dtype,
                unreadable=base.unreadable if same_size else "reinterpreted_size",
                plain=False,
            )
            if entry is not None:
                entry.views[key] = view
        return view

    def _new_storage(self, ref: weakref.ref[Any]) -> StorageEntry:
        if len(self._storages) >= self._sweep_at:
            self._sweep()
        entry = self._storages[id(ref)] = StorageEntry(next(self._storage_ids), ref)
        return entry

    def _sweep(self) -> None:
        """Forgets dead storages, so that memory follows what lives and not what was launched."""
        for key, entry in list(self._storages.items()):
            if entry.ref() is None:
                self._storages.pop(key, None)
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._storages))
