"""Attributes replaced for a while and given back exactly as they were."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import attrs

MISSING = object()


@attrs.define
class AttributePatches:
    """A context manager that restores every attribute set through it, last one first."""

    _originals: list[tuple[Any, str, object]] = attrs.field(factory=list)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name``; what the owner itself held, or that it held nothing, is kept."""
        self.adopt(owner, name, vars(owner).get(name, MISSING))
        setattr(owner, name, value)

    def adopt(self, owner: Any, name: str, original: object) -> None:
        """Promise to restore an attribute that somebody else has already replaced."""
        self._originals.append((owner, name, original))

    def restore(self) -> None:
        """Give every attribute back."""
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    def __enter__(self) -> AttributePatches:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()
