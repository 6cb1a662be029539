"""Containment: a fault of ours is counted, logged once, and goes no further."""

from __future__ import annotations

import logging

import pytest

from lazytrace._capture.containment import Containment


def _fail() -> None:
    raise ValueError("broken")


def test_a_fault_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Every fault counts, the first of each place is logged with its traceback."""
    containment = Containment()
    with caplog.at_level(logging.ERROR, logger="lazytrace"):
        assert containment.run("here", _fail) is None
        containment.run("here", _fail)
        containment.run("there", _fail)
    assert containment.faults == {"here": 2, "there": 1}
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert containment.last == "there: ValueError: broken"


def test_a_result_passes_through() -> None:
    """A call that works is returned as it is."""
    assert Containment().run("here", max, 1, 2) == 2


def test_an_interrupt_is_not_contained() -> None:
    """Ctrl-C and sys.exit belong to the user's program."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Containment().run("here", interrupted)
