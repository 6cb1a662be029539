"""Probes: statistics read on the device at a launch itself, and the seam to what runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from lazytrace._capture.views import TensorView
    from lazytrace.records import Reading, TensorStats


@attrs.frozen(eq=False)
class ProbeViews:
    """What a probe reads, shared by every launch that passes the same."""

    views: tuple[TensorView, ...]


@attrs.frozen
class ProbeResult:
    """What a probe saw of one view when it last ran.

    ``runs`` counts how often it ran (in a graph: the number of the replay that wrote this), 0 if
    never; ``stats`` are None then, or where ``error`` says why the view cannot be read.
    ``first_bad_run`` is the first run that saw an element that is not finite, ``first_bad_index``
    the row-major index of the first such element then.
    """

    runs: int
    stats: TensorStats | None
    error: str | None = None
    first_bad_run: int | None = None
    first_bad_index: int | None = None


class Probe(Protocol):
    """One statistics node, or launch, over some views; opaque to all but its ``LaunchProbes``."""

    @property
    def views(self) -> tuple[TensorView, ...]:
        """What it reads."""


class LaunchProbes(Protocol):
    """A device's statistics kernels that run beside the program's own, one node for many views.

    ``prepare``, ``grow``, ``settle`` and ``read`` are called by threads without a capture of
    their own and do no harm to those of others. ``take`` and ``place`` also inside captures.
    """

    def prepare(self) -> str | None:
        """Allocates slots on the current device and loads the kernels; why not, if it cannot."""

    def take(self, views: ProbeViews, capture: int | None, device: int) -> Probe | str:
        """A slot for one probe, of a capture or eager; or why there is none (``no_slot``)."""

    def place(self, probe: Probe, stream: int) -> str | None:
        """Enqueues the probe on a stream, or captures it as one node; why not, if it cannot."""

    def settle(self) -> str | None:
        """Makes captured probes ready to be replayed; why not, if it cannot."""

    def grow(self) -> None:
        """Makes room where little is left."""

    def read(self, probes: Sequence[Probe]) -> list[list[ProbeResult]]:
        """What each probe saw, view by view; ReadError when the device itself refused."""

    def release(self, probe: Probe) -> None:
        """Gives a slot back whose probe will not run again and is not running."""

    def forget(self, capture: int) -> None:
        """Gives back what the probes of a capture shared, all of them released."""

    def close(self) -> None:
        """Frees what nothing can write to any more; no probe is taken afterwards."""


@attrs.define(eq=False)
class ProbedLaunch:
    """The probes of one launch, before and after it.

    ``inputs`` and ``outputs`` give, by argument path, a view's place in the probe before and the
    one after the launch; ``refused`` the readings of arguments that no probe can read.
    ``unplaced`` says why the probe after the launch never ran; it is ``launch_failed`` until the
    launch has returned.
    """

    inputs: dict[str, int]
    outputs: dict[str, int]
    refused: dict[str, Reading]
    before: Probe | None = None
    after: Probe | None = None
    unplaced: str | None = None

    def placed(self, unplaced: str | None) -> list[Probe]:
        """The probes that were enqueued, ``unplaced`` being what it was at that time."""
        after = self.after if unplaced is None else None
        return [probe for probe in (self.before, after) if probe is not None]
