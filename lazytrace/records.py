"""What a trace says: launches, their arguments, values, and when those were read.

Everything here is finished and frozen, and imports neither torch nor triton. The same
types come from a running tracer and from a trace file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from lazytrace.arguments import (
    Arg,
    ArgKind,
    ArgState,
    Blob,
    ConstexprArg,
    DescriptorArg,
    FunctionArg,
    NoneArg,
    ObjectArg,
    Observation,
    Overwritten,
    Point,
    Pool,
    Reading,
    Role,
    ScalarArg,
    TensorArg,
    TensorStats,
    TupleArg,
    WireEnum,
    parts,
    with_tensors,
)

__all__ = [
    "Arg",
    "ArgKind",
    "ArgState",
    "Blob",
    "CaptureRef",
    "CaptureState",
    "ConstexprArg",
    "Coverage",
    "DescriptorArg",
    "FlushResult",
    "Frame",
    "FunctionArg",
    "KernelInfo",
    "LaunchRecord",
    "LaunchState",
    "NoneArg",
    "ObjectArg",
    "Observation",
    "Outcome",
    "Overwritten",
    "Phase",
    "Point",
    "Pool",
    "Reading",
    "Role",
    "ScalarArg",
    "Session",
    "TensorArg",
    "TensorStats",
    "TupleArg",
    "parts",
]


class LaunchState(WireEnum):
    """How far a launch's record has come."""

    PENDING = "pending"
    COMPLETE = "complete"
    CAPTURE_FAILED = "capture_failed"
    NEVER_REPLAYED = "never_replayed"


class Outcome(WireEnum):
    """What became of the launch itself."""

    SUBMITTED = "submitted"
    EMPTY_GRID = "empty_grid"
    FAILED = "failed"


class Phase(WireEnum):
    """Which part of the program launched: its own run, an autotune trial, a benchmark's warm-up."""

    RUN = "run"
    TRIAL = "trial"
    WARM_UP = "warm-up"


class CaptureState(WireEnum):
    """How far a CUDA graph capture has come."""

    OPEN = "open"
    CAPTURED = "captured"
    FAILED = "failed"
    NEVER_REPLAYED = "never_replayed"


@attrs.frozen
class KernelInfo:
    """A compiled kernel.

    ``shared`` and the scratch sizes are bytes; ``n_regs`` and ``n_spills`` are per thread and None
    until the kernel was loaded. ``source`` is the kernel's Python text; where there is none,
    ``source_missing`` says why. ``ir`` maps a stage (``ttir``, ``ptx``) to its text (``ir=True``).
    ``roles`` maps an argument's path to what the kernel may do with it; ``reads_unknown`` and
    ``writes_unknown``: it also reads or writes where no argument points.
    """

    name: str
    hash: str
    file: str | None = None
    line: int | None = None
    arch: str | int | None = None
    backend: str | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    num_ctas: int | None = None
    shared: int | None = None
    maxnreg: int | None = None
    n_regs: int | None = None
    n_spills: int | None = None
    cooperative: bool | None = None
    pdl: bool | None = None
    global_scratch_size: int | None = None
    profile_scratch_size: int | None = None
    triton_version: str | None = None
    source: str | None = None
    source_missing: str | None = None
    ir: Mapping[str, str] | None = None
    roles: Mapping[str, Role] = attrs.field(factory=dict)
    reads_unknown: bool = False
    writes_unknown: bool = False


@attrs.frozen
class CaptureRef:
    """The place of a launch in a CUDA graph capture.

    ``graph`` numbers the graph object, ``epoch`` its captures from 0, ``index`` the launch within
    the capture. ``cuda_id`` is CUDA's own capture id, where it could be asked.
    """

    graph: int
    name: str | None
    epoch: int
    index: int
    cuda_id: int | None = None


@attrs.frozen
class Frame:
    """One frame of a call site."""

    file: str
    line: int
    function: str


@attrs.frozen
class LaunchRecord:
    """A launch, or a run of ``count`` identical consecutive ones that owns ids [id, id + count).

    ``grid`` has three dimensions. ``time_ns`` is Unix time of the run's first launch, in
    nanoseconds. ``stream`` is the raw stream handle, ``thread`` Python's thread identifier.
    ``args`` maps paths ("x", "ts[0]", "cfg.x", "desc.base") to arguments in signature order.
    """

    id: int
    kernel: KernelInfo
    grid: tuple[int, int, int]
    outcome: Outcome
    stream: int
    device: int
    thread: int
    time_ns: int
    count: int
    phase: Phase
    mark: str | None
    capture: CaptureRef | None
    state: LaunchState
    replays: int
    args: Mapping[str, Arg]
    call_site: tuple[Frame, ...] | None = None

    def expanded(self) -> Iterator[LaunchRecord]:
        """One record per launch of the run."""
        if self.count == 1:
            yield self
            return
        for step in range(self.count):
            capture = self.capture
            if capture is not None:
                capture = attrs.evolve(capture, index=capture.index + step)
            args = self.args if step < self.count - 1 else _last_args(self.args, self.id + step)
            yield attrs.evolve(self, id=self.id + step, count=1, capture=capture, args=args)


def _last_args(args: Mapping[str, Arg], launch: int) -> Mapping[str, Arg]:
    """The arguments of a run's last launch: what that launch itself has written is its own."""

    def is_own(arg: Arg) -> bool:
        return (
            isinstance(arg, TensorArg)
            and arg.observed is not None
            and arg.observed.overwritten_by == launch
            and arg.role is not Role.READ
        )

    def kept(arg: TensorArg) -> TensorArg:
        if arg.observed is None or not is_own(arg):
            return arg
        observed = attrs.evolve(arg.observed, overwritten=Overwritten.POSSIBLE, overwritten_by=None)
        return attrs.evolve(arg, observed=observed)

    if not any(is_own(arg) for arg in args.values()):
        return args
    return {path: with_tensors(arg, kept) for path, arg in args.items()}


@attrs.frozen
class FlushResult:
    """What a flush did: launches ``completed``, launches ``still_due``, and why those are."""

    completed: int
    still_due: int
    reason: str | None = None


@attrs.frozen
class Session:
    """The process that was traced, and how.

    ``time_ns`` (Unix) and ``monotonic_ns`` were read together, when the tracer was enabled.
    ``notes`` say what the options make of timings taken meanwhile.
    """

    schema_version: int
    lazytrace: str
    python: str
    torch: str | None
    triton: str | None
    host: str
    pid: int
    argv: tuple[str, ...]
    devices: tuple[str, ...]
    options: Mapping[str, Any]
    time_ns: int
    monotonic_ns: int
    rank: int | None = None
    world_size: int | None = None
    notes: tuple[str, ...] = ()


@attrs.frozen
class Coverage:
    """How much of what ran was looked at.

    ``replays_read`` of ``replays_run`` graph replays; tensor arguments by what became of them;
    ``unseen_launches`` are those known to have been missed, ``dropped`` counts by reason.
    """

    replays_read: int = 0
    replays_run: int = 0
    materialized: int = 0
    expired: int = 0
    skipped: int = 0
    failed: int = 0
    pending: int = 0
    unseen_launches: int = 0
    dropped: Mapping[str, int] = attrs.field(factory=dict)
