"""Puts probes round launches: one before for what it reads, one after for what it writes."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs

from lazytrace._capture.containment import Containment
from lazytrace._capture.describe import ArgSet
from lazytrace._capture.patches import Patches
from lazytrace._capture.pending import Run
from lazytrace._capture.views import TensorView
from lazytrace._device.runtime import Runtime
from lazytrace._probes.seam import LaunchProbes, Probe, ProbedLaunch, ProbeViews
from lazytrace.records import ArgState, Reading, Role

_log = logging.getLogger("lazytrace")

NO_SLOT = "no_slot"
NOT_PREPARED = "not_prepared"
EXIT_HOOK_TAKEN = "exit_hook_taken"
LAUNCH_FAILED = "launch_failed"
_FAULT = "tracer_error"
_MOST_NESTED = 16  # launches from within hooks of launches


class _OpenLaunches(threading.local):
    """The calling thread's launches between the hook before and the hook after them."""

    def __init__(self) -> None:
        self.stack: list[tuple[ProbedLaunch, int] | None] = []


@attrs.define
class _Sides:
    """What the probes of one set of arguments read, by path, and what they cannot read."""

    reads: ProbeViews
    writes: ProbeViews
    inputs: dict[str, int]
    outputs: dict[str, int]
    refused: dict[str, Reading]


@attrs.define
class Prober:
    """Takes and places the probes of recorded launches; host Python but for the probes themselves.

    ``capturing`` tells whether the calling thread has a capture of its own open. ``refused``
    counts the launches without values, by reason.
    """

    runtime: Runtime
    probes: LaunchProbes
    containment: Containment
    capturing: Callable[[], bool]
    refused: Counter[str] = attrs.field(factory=Counter)
    exit_hook: Callable[[Any], None] | None = None  # ours in Triton's chain
    _prepared: dict[int, str | None] = attrs.field(factory=dict)  # by device: why it is not
    _sides: weakref.WeakKeyDictionary[ArgSet, _Sides] = attrs.field(
        factory=weakref.WeakKeyDictionary
    )
    _open: _OpenLaunches = attrs.field(factory=_OpenLaunches)

    # Around a launch

    def enter(self) -> None:
        """A launch begins; until ``before`` says otherwise it has no probe after it."""
        stack = self._open.stack
        if len(stack) >= _MOST_NESTED:
            stack.clear()  # launches that failed never came to their exit hook
        stack.append(None)

    def before(self, run: Run) -> None:
        """Places the probe before a recorded launch; says in the run if there can be none."""
        run.token = None  # its values are its own: no other launch joins it
        reason = self.containment.run("probe before a launch", self._before, run)
        if reason == "":
            return
        run.values, run.reason = ArgState.SKIPPED, reason or _FAULT
        self.refused[run.reason] += 1

    def _before(self, run: Run) -> str:
        """Why the launch has no probes; an empty string if it has them."""
        refusal = self._prepare(run)
        if refusal is not None:
            return refusal
        run.kernel.find_roles()
        sides = self._sides_of(run)
        launch = ProbedLaunch(sides.inputs, sides.outputs, sides.refused)
        taken: list[Probe] = []
        for views in (sides.reads, sides.writes):
            probe = self._take(views, run)
            if isinstance(probe, str):
                self._release(taken)
                return probe
            taken += [] if probe is None else [probe]
            if views is sides.reads:
                launch.before = probe
            else:
                launch.after = probe
        if launch.before is not None:
            error = self.probes.place(launch.before, run.stream)
            if error is not None:
                self._release(taken)
                return error
        if launch.after is not None:
            launch.unplaced = LAUNCH_FAILED
            self._open.stack[-1:] = [(launch, run.stream)]
        run.probed = launch
        return ""

    def _release(self, probes: list[Probe]) -> None:
        for probe in probes:
            self.probes.release(probe)

    def _after(self) -> None:
        """The exit hook: the launch was submitted."""
        stack = self._open.stack
        top = stack.pop() if stack else None
        if top is None:
            return
        launch, stream = top
        if launch.after is not None:
            launch.unplaced = self.probes.place(launch.after, stream)

    # Slots

    def prepare(self) -> str | None:
        """Prepares the current device; why not, if the program is not in a state for that."""
        if self.capturing():
            return NOT_PREPARED
        refusal = self.runtime.refusal()
        if refusal is not None:
            return refusal
        reason = self.probes.prepare()
        if reason != NOT_PREPARED:
            self._prepared[self.runtime.current_device()] = reason
        return reason

    def _prepare(self, run: Run) -> str | None:
        if run.device in self._prepared:
            return self._prepared[run.device]
        return NOT_PREPARED if run.capture is not None else self.prepare()

    def relieve(self) -> None:
        """Makes room for further probes, and lets a device that was refused be tried again."""
        for device, reason in list(self._prepared.items()):
            if reason is not None:
                del self._prepared[device]
        self.probes.grow()

    def settle(self) -> None:
        """A capture has ended: its probes are made ready to be replayed."""
        reason = self.containment.run("end of a capture", self.probes.settle)
        if reason is not None:
            _log.error("lazytrace: the statistics of a captured graph cannot be read: %s", reason)
        if not self.capturing():
            self.containment.run("end of a capture", self.probes.grow)

    def _take(self, views: ProbeViews, run: Run) -> Probe | str | None:
        if not views.views:
            return None
        capture = None if run.capture is None else run.capture.id
        probe = self.probes.take(views, capture, run.device)
        if probe == NO_SLOT and capture is None and not self.capturing():
            self.probes.grow()
            probe = self.probes.take(views, capture, run.device)
        return probe

    # What is read

    def _sides_of(self, run: Run) -> _Sides:
        sides = self._sides.get(run.args)
        if sides is None:
            sides = self._sides[run.args] = self._new_sides(run)
        return sides

    def _new_sides(self, run: Run) -> _Sides:
        refused: dict[str, Reading] = {}
        reads: dict[str, TensorView] = {}
        writes: dict[str, TensorView] = {}
        for path, view in run.args.views:
            if 0 in view.shape:
                continue
            reason = view.unreadable or self.runtime.unreadable(view)
            role = run.kernel.info.roles.get(path, Role.UNKNOWN)
            if reason is None and role is Role.WRITE and self.exit_hook is None:
                reason = EXIT_HOOK_TAKEN
            if reason is not None:
                refused[path] = Reading(ArgState.SKIPPED, reason)
                continue
            if role is not Role.WRITE:
                reads[path] = view
            if role is not Role.READ and self.exit_hook is not None:
                writes[path] = view
        read_views, inputs = _distinct(reads)
        written_views, outputs = _distinct(writes)
        return _Sides(read_views, written_views, inputs, outputs, refused)

    # The exit hook

    def install(self, patches: Patches) -> None:
        """Adds the exit hook, unless another tool holds Triton's slot for one."""
        from triton import knobs

        runtime = knobs.runtime

        def exit_hook(_: Any) -> None:
            if self._open.stack:
                self.containment.run("probe after a launch", self._after)

        slot = runtime.launch_exit_hook
        if hasattr(slot, "add") and hasattr(slot, "remove"):
            slot.add(exit_hook)
            patches.on_undo(lambda: slot.remove(exit_hook))
        elif slot is None:  # Triton 3.4: a plain attribute, for one tool
            runtime.launch_exit_hook = exit_hook

            def restore() -> None:
                if runtime.launch_exit_hook is exit_hook:
                    runtime.launch_exit_hook = None

            patches.on_undo(restore)
        else:
            _log.warning(
                "lazytrace: another tool holds Triton's launch_exit_hook; values after a launch "
                "are not read"
            )
            return
        self.exit_hook = exit_hook


def _distinct(views: dict[str, TensorView]) -> tuple[ProbeViews, dict[str, int]]:
    """Each view once, and the place of each path's view."""
    places = {
        number: place for place, number in enumerate(dict.fromkeys(v.id for v in views.values()))
    }
    distinct = {view.id: view for view in views.values()}
    return (
        ProbeViews(tuple(distinct.values())),
        {path: places[view.id] for path, view in views.items()},
    )
