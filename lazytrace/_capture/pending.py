"""What was launched and is not finished: runs, captures, and the queues between the two sides.

The hook appends, a flush takes away. Nothing here takes a lock: appends and pops of a deque are
atomic, and a run is only ever counted up by the thread that made it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import attrs

from lazytrace.records import ArgState, CaptureState, Frame, Outcome, Phase

if TYPE_CHECKING:
    import weakref

    from lazytrace._capture.describe import ArgSet
    from lazytrace._capture.kernels import KernelEntry
    from lazytrace._capture.views import TensorView
    from lazytrace._probes.seam import ProbedLaunch
    from lazytrace._values.write_index import WriteIndex


@attrs.define(eq=False)
class Run:
    """Identical consecutive launches that own the ids [id, id + count)."""

    id: int
    kernel: KernelEntry
    args: ArgSet
    grid: tuple[Any, ...]
    stream: int
    device: int
    thread: int
    time_ns: int
    phase: Phase
    mark: str | None
    capture: Capture | None
    index: int | None
    values: ArgState
    reason: str | None
    outcome: Outcome
    call_site: tuple[Frame, ...] | None
    token: object  # the queue's when it began: another one closes it
    count: int = 1
    written: int = 0  # the count in the trace so far
    probed: ProbedLaunch | None = None  # at_launch mode: its own probes, so it never grows

    @property
    def last_id(self) -> int:
        """The id of the run's latest launch."""
        return self.id + self.count - 1


@attrs.define(eq=False)
class Capture:
    """One capture of one graph, from capture_begin on.

    ``views`` are the distinct tensors of its launches whose values are still to be read,
    ``groups`` the runs that passed each set of arguments. ``kernels`` keeps compiled kernels
    alive until the capture has ended: unloading a module inside a capture breaks it.
    """

    id: int
    graph: int
    name: str | None
    epoch: int
    cuda_id: int | None
    stream: int
    device: int
    thread: int
    time_ns: int
    foreign: bool = False
    owner: weakref.ref[Any] | None = None
    state: CaptureState = CaptureState.OPEN
    launches: int = 0
    first_launch: int | None = None
    replays: int = 0
    replays_read: int = 0
    replay_stream: int = 0
    replay_number: int = 0
    exception_at_begin: int | None = None
    graph_storages: tuple[int, ...] | None = None
    gone: bool = False
    pending_runs: int = 0  # of which the queue keeps count
    copied: bool = False  # something else may hold a copy of its nodes, and run them
    replays_seen: int = 0  # at_launch mode: the replays up to the latest reading
    probed: list[Run] = attrs.field(factory=list)  # at_launch mode: the runs that have probes
    views: dict[int, TensorView] = attrs.field(factory=dict)
    groups: dict[int, Group] = attrs.field(factory=dict)
    kernels: dict[int, Any] = attrs.field(factory=dict)
    writes: WriteIndex | None = None  # made at the first reading
    written: tuple[Any, ...] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether no further launch can be part of it; of a foreign one that is never known."""
        return self.state is not CaptureState.OPEN and not self.foreign

    @property
    def armed(self) -> bool:
        """Whether the graph was replayed."""
        return self.replays > 0

    @property
    def has_values(self) -> bool:
        """Whether there is anything of it to read."""
        return bool(self.views or self.probed)


@attrs.define(eq=False)
class Group:
    """The runs of one capture that passed one set of arguments.

    ``last`` is the id of the last launch among them that was submitted, as far as the trace has
    taken them over; -1 before that.
    """

    kernel: KernelEntry
    args: ArgSet
    runs: list[int] = attrs.field(factory=list)
    launches: int = 0
    last: int = -1


@attrs.define
class PendingQueue:
    """The queues from the hook and the graph watch to the flush; bounded by ``max_pending``.

    ``new``: runs that the trace does not know yet. ``eager``: eager runs whose values are due.
    ``armed``: captures whose first replay was submitted. ``gone``: captures whose graph was reset
    or destroyed. ``ended``: captures that ended or failed. ``token`` is replaced when a further
    launch must be looked at in full, although it may look like the one before.
    """

    max_pending: int
    new: deque[Run] = attrs.field(factory=deque)
    eager: deque[Run] = attrs.field(factory=deque)
    armed: deque[Capture] = attrs.field(factory=deque)
    gone: deque[Capture] = attrs.field(factory=deque)
    ended: deque[Capture] = attrs.field(factory=deque)
    token: object = attrs.field(factory=object)
    captured: int = 0
    refused: int = 0

    def renew_token(self) -> None:
        """Lets no launch be counted as a repeat of an earlier one without a full look."""
        self.token = object()

    @property
    def full(self) -> bool:
        """Whether the values of a further launch would be dropped."""
        return self.captured + len(self.eager) >= self.max_pending
