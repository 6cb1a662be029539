"""Completion: what a synchronisation proves, and what it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lazytrace._values.completion import Completion, Progress


def _run(last_id: int, device: int = 0, stream: int = 7) -> Any:
    return SimpleNamespace(last_id=last_id, device=device, stream=stream)


def _capture(number: int, device: int = 0, stream: int = 7) -> Any:
    return SimpleNamespace(replay_number=number, device=device, replay_stream=stream)


def test_a_device_synchronisation_proves_what_was_submitted_before_it() -> None:
    """Launches and replays up to the synchronisation's beginning are done, later ones are not."""
    completion = Completion()
    completion.device_synchronized(0, Progress(launch=5, replay=2))
    assert completion.run_is_done(_run(5))
    assert not completion.run_is_done(_run(6))
    assert completion.capture_is_done(_capture(2))
    assert not completion.capture_is_done(_capture(3))


def test_another_device_is_not_proven() -> None:
    """Synchronising device 0 says nothing of device 1."""
    completion = Completion()
    completion.device_synchronized(0, Progress(launch=5, replay=2))
    assert not completion.run_is_done(_run(5, device=1))
    assert not completion.capture_is_done(_capture(2, device=1))


def test_a_stream_synchronisation_proves_its_stream_alone() -> None:
    """Other streams of the device may still be running."""
    completion = Completion()
    completion.stream_synchronized((0, 7), Progress(launch=5, replay=2))
    assert completion.run_is_done(_run(5))
    assert not completion.run_is_done(_run(5, stream=8))
    assert completion.capture_is_done(_capture(1))
    assert not completion.capture_is_done(_capture(1, stream=8))


def test_nothing_is_done_before_any_synchronisation() -> None:
    """The first launch has number 0, and is not done by default."""
    assert not Completion().run_is_done(_run(0))
    assert not Completion().capture_is_done(_capture(1))
