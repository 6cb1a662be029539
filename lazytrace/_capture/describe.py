"""Describes the arguments of a launch by host reads only, and recognises those seen before."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs
import torch

from lazytrace._capture import opaque as _opaque
from lazytrace._capture.recognise import ArgTest, arg_test
from lazytrace._capture.views import TensorView, Views
from lazytrace.records import Arg, NoneArg, TupleArg

if TYPE_CHECKING:
    from lazytrace._capture.repeat import Repeat

_PLAIN = (bool, int, float, str, bytes, complex)
_FIRST_PRUNE = 1024
_MAX_SETS = 1 << 16
_MAX_DEPTH = 16  # deeper tuples are described as objects; the file takes no deeper ones


@attrs.define(eq=False)
class ArgSet:
    """The arguments of a launch, shared by every launch of the kernel that passed the same.

    ``items`` are what each position is compared with, ``views`` the tensors by path.
    """

    id: int
    items: tuple[Any, ...]
    views: tuple[tuple[str, TensorView], ...]
    described: Mapping[str, Arg] | None
    names: tuple[str, ...]
    constexprs: frozenset[int]
    written: bool = False
    test: ArgTest | None = None  # whether a launch passes these again
    repeat: Repeat | None = None  # records a launch that does
    _recognised: Callable[[Sequence[Any]], bool] | None = None

    def args(self) -> Mapping[str, Arg]:
        """The finished descriptions by path, in signature order."""
        if self.described is not None:
            return self.described
        finished: dict[str, Arg] = {}
        for position, (name, item) in enumerate(zip(self.names, self.items)):
            if item.__class__ is TensorView:
                finished[name] = item.as_arg()
            else:
                finished[name] = _opaque.plain_or_object(
                    item, constexpr=position in self.constexprs
                )
        return MappingProxyType(finished)

    def recognised(self, args: Sequence[Any]) -> bool:
        """The test, called; there must be one."""
        if self._recognised is None:
            assert self.test is not None
            self._recognised = self.test.compiled()
        return self._recognised(args)


@attrs.define
class Describer:
    """Turns the arguments of launches into argument sets, each distinct one once."""

    _views: Views = attrs.field(factory=Views)
    _ids: Iterator[int] = attrs.field(factory=itertools.count)

    def same(self, known: ArgSet, args: tuple[Any, ...]) -> bool:
        """Whether the arguments are, to the last bit of metadata, those of a known set.

        The first time it compares one by one; a set that comes again gets a faster test.
        """
        if known.test is not None:
            return known.recognised(args)
        if len(args) != len(known.items):
            return False
        for item, arg in zip(known.items, args):
            if item.__class__ is TensorView:
                if not _is(item, arg):
                    return False
            elif arg is not item and not _equal(item, arg):
                return False
        known.test = arg_test(known.items, args)
        return True

    def recognisable(self, described: ArgSet) -> bool:
        """Whether these arguments can be recognised: plain tensors and plain values only."""
        return described.described is None and all(
            view.plain and view.ref is not None for _, view in described.views
        )

    def describe(
        self,
        names: Sequence[str],
        constexprs: frozenset[int],
        args: Sequence[Any],
        known: dict[tuple[Any, ...], ArgSet],
        latest: ArgSet | None = None,
        *,
        quiet: bool = False,
    ) -> ArgSet:
        """The set that these arguments make; one of ``known`` (a kernel's own) if it is there.

        ``latest`` is the set of the kernel's launch before: most of its tensors come again.
        ``quiet``: a capture may be open, which an object's own ``__repr__`` could break.
        """
        if len(names) != len(args):
            names = [*names[: len(args)], *(f"arg{i}" for i in range(len(names), len(args)))]
        if latest is not None and len(latest.items) == len(args):
            items = [
                before if before.__class__ is TensorView and _is(before, arg) else self._item(arg)
                for before, arg in zip(latest.items, args)
            ]
        else:
            items = [self._item(arg) for arg in args]
        if any(item is _COMPOUND for item in items):
            return self._compound(names, constexprs, args, items, known, quiet)
        key = tuple(_key(item) for item in items)
        found = known.get(key)
        if found is None:
            views = tuple(
                (name, item) for name, item in zip(names, items) if item.__class__ is TensorView
            )
            found = ArgSet(next(self._ids), tuple(items), views, None, tuple(names), constexprs)
            self._remember(known, key, found)
        return found

    def _item(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return self._views.tensor(arg)
        if arg is None or type(arg) in _PLAIN:
            return arg
        return _COMPOUND

    def _compound(
        self,
        names: Sequence[str],
        constexprs: frozenset[int],
        args: Sequence[Any],
        items: list[Any],
        known: dict[tuple[Any, ...], ArgSet],
        quiet: bool,
    ) -> ArgSet:
        """An argument set with tuples, descriptors or objects in it, described in full.

        Such arguments may be changed in place, so they are never recognised by identity: `items`
        of the set equal no argument, and sets with equal descriptions are one.
        """
        finished: dict[str, Arg] = {}
        views: list[tuple[str, TensorView]] = []
        for position, (name, arg) in enumerate(zip(names, args)):
            self._finish(name, arg, position in constexprs, finished, views, quiet)
        key = tuple(
            _key(item) if item is not _COMPOUND else repr(finished[name])
            for name, item in zip(names, items)
        ) + tuple(view.id for _, view in views)
        found = known.get(key)
        if found is None:
            found = ArgSet(
                next(self._ids),
                tuple(items),
                tuple(views),
                MappingProxyType(finished),
                tuple(names),
                constexprs,
            )
            self._remember(known, key, found)
        return found

    def _finish(
        self,
        path: str,
        arg: Any,
        constexpr: bool,
        finished: dict[str, Arg],
        views: list[tuple[str, TensorView]],
        quiet: bool,
        depth: int = 0,
    ) -> Arg:
        """Describes one argument and what it contains, each under its own path."""
        if isinstance(arg, torch.Tensor):
            view = self._views.tensor(arg)
            views.append((path, view))
            finished[path] = view.as_arg()
        elif isinstance(arg, tuple) and depth < _MAX_DEPTH:
            self._finish_tuple(path, arg, constexpr, finished, views, quiet, depth)
        elif not constexpr and _opaque.is_descriptor(arg):
            finished[path] = NoneArg()  # keeps the descriptor before its base
            base = self._finish(f"{path}.base", arg.base, False, finished, views, quiet)
            finished[path] = _opaque.descriptor(arg, base, quiet=quiet)
        elif not constexpr and callable(getattr(arg, "data_ptr", None)):
            view = self._views.duck(arg)
            views.append((path, view))
            finished[path] = view.as_arg()
        else:
            finished[path] = _opaque.plain_or_object(arg, constexpr=constexpr, quiet=quiet)
        return finished[path]

    def _finish_tuple(
        self,
        path: str,
        arg: tuple[Any, ...],
        constexpr: bool,
        finished: dict[str, Arg],
        views: list[tuple[str, TensorView]],
        quiet: bool,
        depth: int,
    ) -> None:
        fields: tuple[str, ...] | None = getattr(arg, "_fields", None)
        finished[path] = NoneArg()
        parts = [f".{field}" for field in fields] if fields else [f"[{i}]" for i in range(len(arg))]
        items = tuple(
            self._finish(path + part, value, constexpr, finished, views, quiet, depth + 1)
            for part, value in zip(parts, arg)
        )
        finished[path] = TupleArg(type=type(arg).__name__, items=items, fields=fields)

    def _remember(
        self, known: dict[tuple[Any, ...], ArgSet], key: tuple[Any, ...], found: ArgSet
    ) -> None:
        if len(known) >= _MAX_SETS:
            known.clear()
        elif len(known) >= _FIRST_PRUNE and len(known) & (len(known) - 1) == 0:
            for other, args in list(known.items()):
                if any(view.ref is None or view.ref() is None for _, view in args.views):
                    known.pop(other, None)
        known[key] = found


def _is(view: TensorView, arg: Any) -> bool:
    """Whether a tensor is, to the last bit of metadata, a known view."""
    return bool(
        arg.__class__ is view.cls
        and view.plain
        and view.ref is not None
        and arg.untyped_storage() is view.ref()
        and arg.data_ptr() == view.data_ptr
        and arg.shape == view.shape
        and arg.stride() == view.strides
        and arg.dtype is view.dtype
    )


class _Compound:
    """Stands in an argument set for what is not compared by value; equal to nothing."""


_COMPOUND = _Compound()


def _key(item: Any) -> Any:
    """A hashable key that tells apart what a kernel, or a reader, would: True, 1 and 1.0; ±0.0."""
    kind = item.__class__
    if kind is TensorView:
        return item.id
    if kind is float:
        return (kind, item.hex())
    if kind is complex:
        return (kind, item.real.hex(), item.imag.hex())
    return (kind, item)


def _equal(known: Any, arg: Any) -> bool:
    """Whether two plain values are the same to the last bit."""
    return known.__class__ is arg.__class__ and known is not _COMPOUND and _key(known) == _key(arg)
