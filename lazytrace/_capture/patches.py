"""Replaces attributes of torch and Triton, and puts the originals back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs

_ABSENT = object()


@attrs.frozen
class _Patch:
    owner: Any
    name: str
    own: Any  # what the owner's own namespace held: _ABSENT if the attribute was inherited
    replacement: Any


@attrs.define
class Patches:
    """Attributes replaced so far. ``active`` is false once they were undone.

    A replacement that another tool has wrapped cannot be taken out; it must then behave as an
    inert pass-through, which is what ``active`` tells it.
    """

    active: bool = True
    _done: list[_Patch] = attrs.field(factory=list)
    _undo: list[Callable[[], None]] = attrs.field(factory=list)

    def on_undo(self, call: Callable[[], None]) -> None:
        """Has something else undone with the patches, last one first."""
        self._undo.append(call)

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
        """Replaces a callable attribute by ``make(original)``; an absent one is left absent."""
        original = getattr(owner, name, None)
        if original is None:
            return
        replacement = functools.wraps(original)(make(original))
        own = vars(owner).get(name, _ABSENT)
        setattr(owner, name, replacement)
        self._done.append(_Patch(owner, name, own, replacement))

    def undo(self) -> list[str]:
        """Restores everything, last first; returns what another tool has since wrapped."""
        self.active = False
        while self._undo:
            self._undo.pop()()
        left = []
        while self._done:
            patch = self._done.pop()
            if vars(patch.owner).get(patch.name) is not patch.replacement:
                left.append(f"{getattr(patch.owner, '__name__', patch.owner)}.{patch.name}")
            elif patch.own is _ABSENT:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.own)
        return left
