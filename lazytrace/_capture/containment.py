"""Keeps a fault of lazytrace out of the user's program: counted, logged once, never raised."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import attrs

_log = logging.getLogger("lazytrace")


@attrs.define
class Containment:
    """The one place that swallows exceptions; used wherever the user's program calls us."""

    faults: dict[str, int] = attrs.field(factory=dict)
    last: str | None = None

    def run(self, place: str, call: Callable[..., Any], *args: Any) -> Any:
        """The call's result, or None when it raised."""
        try:
            return call(*args)
        except Exception as error:  # noqa: BLE001 - the boundary to the user's program
            self.note(place, error)
            return None

    def note(self, place: str, error: BaseException) -> None:
        """Counts a fault; the first one of each place is logged with its traceback."""
        seen = self.faults.get(place, 0)
        self.faults[place] = seen + 1
        self.last = f"{place}: {type(error).__name__}: {error}"
        if not seen:
            _log.error(
                "lazytrace: a fault in its %s was contained; the program goes on, later faults "
                "there are only counted. Please report it.",
                place,
                exc_info=error,
            )
