"""Patches: what is replaced is put back, and nobody else's work is undone."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from lazytrace._capture.patches import Patches


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    def own(self) -> str:
        return "own"


def _louder(original: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) + "!"

    return replacement


def test_a_wrapped_attribute_is_replaced_and_restored() -> None:
    """The replacement is in force until undo(), which gives the original object back."""
    original = vars(Owner)["own"]
    patches = Patches()
    patches.wrap(Owner, "own", _louder)
    assert Owner().own() == "own!"
    assert patches.undo() == []
    assert vars(Owner)["own"] is original


def test_an_inherited_attribute_is_removed_again() -> None:
    """Undoing leaves no copy of an inherited attribute on the class itself."""
    patches = Patches()
    patches.wrap(Owner, "inherited", _louder)
    assert Owner().inherited() == "base!"
    patches.undo()
    assert "inherited" not in vars(Owner)
    assert Owner().inherited() == "base"


def test_patches_are_undone_last_first() -> None:
    """Two patches of one attribute unwind in order, down to the original."""
    original = vars(Owner)["own"]
    patches = Patches()
    patches.wrap(Owner, "own", _louder)
    patches.wrap(Owner, "own", _louder)
    assert Owner().own() == "own!!"
    assert patches.undo() == []
    assert vars(Owner)["own"] is original


def test_another_tools_wrapper_is_left_in_place() -> None:
    """What somebody wrapped over ours is theirs: it stays, and undo() names it."""
    module = types.ModuleType("somewhere")
    module.call = lambda: "call"  # type: ignore[attr-defined]
    patches = Patches()
    patches.wrap(module, "call", _louder)
    ours = module.call
    theirs = _louder(ours)
    module.call = theirs  # type: ignore[attr-defined]
    assert patches.undo() == ["somewhere.call"]
    assert module.call is theirs
    assert patches.active is False


def test_an_absent_attribute_stays_absent() -> None:
    """An attribute that this version of the library lacks is not invented."""
    patches = Patches()
    patches.wrap(Owner, "nowhere", _louder)
    assert not hasattr(Owner, "nowhere")
    assert patches.undo() == []


def test_a_replacement_keeps_the_originals_name() -> None:
    """Tracebacks and signatures show the function that was wrapped."""
    patches = Patches()
    patches.wrap(Owner, "own", _louder)
    try:
        assert Owner.own.__name__ == "own"
        assert Owner.own.__wrapped__ is not None  # type: ignore[attr-defined]
    finally:
        patches.undo()


@pytest.fixture(autouse=True)
def no_hook_is_left() -> None:
    """Nothing of torch is touched here."""
