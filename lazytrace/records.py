"""What a trace says: launches, their arguments, values, and when those were read.

Everything here is finished and frozen, and imports neither torch nor triton. The same
types come from a running tracer and from a trace file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, ClassVar

import attrs


class _Wire(str, Enum):
    """An enumeration whose members equal, and print as, the words of the file."""

    def __str__(self) -> str:
        return str.__str__(self)

    def __format__(self, spec: str) -> str:
        return str.__format__(self.value, spec)


class LaunchState(_Wire):
    """How far a launch's record has come."""

    PENDING = "pending"
    COMPLETE = "complete"
    CAPTURE_FAILED = "capture_failed"
    NEVER_REPLAYED = "never_replayed"


class Outcome(_Wire):
    """What became of the launch itself."""

    SUBMITTED = "submitted"
    EMPTY_GRID = "empty_grid"
    FAILED = "failed"


class Phase(_Wire):
    """Which part of the program launched: its own run, an autotune trial, a benchmark's warm-up."""

    RUN = "run"
    TRIAL = "trial"
    WARM_UP = "warm-up"


class ArgKind(_Wire):
    """What sort of argument was passed."""

    TENSOR = "tensor"
    SCALAR = "scalar"
    CONSTEXPR = "constexpr"
    NONE = "none"
    TUPLE = "tuple"
    DESCRIPTOR = "descriptor"
    FUNCTION = "function"
    OBJECT = "object"


class ArgState(_Wire):
    """What became of one tensor argument's values."""

    PENDING = "pending"
    MATERIALIZED = "materialized"
    EXPIRED = "expired"
    FAILED = "failed"
    SKIPPED = "skipped"
    EMPTY = "empty"
    OFF = "off"


class Pool(_Wire):
    """Whose memory a captured launch's argument lies in."""

    GRAPH = "graph"
    EXTERNAL = "external"
    UNKNOWN = "unknown"


class Role(_Wire):
    """What the kernel may do with a tensor argument: an upper bound."""

    READ = "read"
    WRITE = "write"
    READ_WRITE = "read_write"
    UNKNOWN = "unknown"


class Point(_Wire):
    """When values were read, relative to the launch.

    ``at_launch`` and ``after_launch``: by a statistics kernel on the launch's own stream,
    just before and just after it. ``after_replay``: at the flush that a replay made due.
    ``on_request``: at a flush that a call, or a synchronisation after an eager launch, brought.
    ``at_exit``: at interpreter exit.
    """

    AT_LAUNCH = "at_launch"
    AFTER_LAUNCH = "after_launch"
    AFTER_REPLAY = "after_replay"
    ON_REQUEST = "on_request"
    AT_EXIT = "at_exit"


class Overwritten(_Wire):
    """Whether something may have written the memory between the launch and the reading."""

    NO = "no"
    BY_LAUNCH = "by_launch"
    POSSIBLE = "possible"


class CaptureState(_Wire):
    """How far a CUDA graph capture has come."""

    OPEN = "open"
    CAPTURED = "captured"
    FAILED = "failed"
    NEVER_REPLAYED = "never_replayed"


@attrs.frozen
class TensorStats:
    """Statistics over the logical elements of one tensor view (stride-0 dimensions multiply).

    ``min``, ``max``, ``mean`` and ``std`` are over the finite elements and None where there are
    none; ``std`` is the sample deviation (n - 1), None below two elements. Integers and bool have
    exact ``min`` and ``max``. ``first_nonfinite_index`` is row-major in the view. A complex tensor
    has its parts' statistics in ``real`` and ``imag`` and no min, max, mean or std of its own; its
    counts are of elements in which either part is NaN or infinite, or both are zero.
    """

    min: int | float | None = None
    max: int | float | None = None
    mean: float | None = None
    std: float | None = None
    nan_count: int = 0
    posinf_count: int = 0
    neginf_count: int = 0
    zero_count: int = 0
    first_nonfinite_index: int | None = None
    real: TensorStats | None = None
    imag: TensorStats | None = None


@attrs.frozen
class Observation:
    """When values were read and what may have overwritten them since the launch.

    ``replay`` counts the graph's replays up to the reading. ``raced``: another launch or replay
    was submitted while the values were read.
    """

    point: Point
    replay: int | None = None
    overwritten: Overwritten = Overwritten.POSSIBLE
    overwritten_by: int | None = None
    raced: bool = False


@attrs.frozen
class Reading:
    """What became of one tensor argument's values: the part of a TensorArg that comes later."""

    state: ArgState
    reason: str | None = None
    values: TensorStats | None = None
    observed: Observation | None = None
    values_after: TensorStats | None = None
    observed_after: Observation | None = None


@attrs.frozen
class TensorArg:
    """A tensor argument: its static description, and its values once they are read.

    ``shape`` and ``strides`` are in elements, ``storage_offset`` too; ``nbytes`` is the number of
    bytes between the view's first and last element, inclusive. ``storage`` is the same number for
    every argument that lies in the same storage.
    """

    kind: ClassVar[ArgKind] = ArgKind.TENSOR

    type: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    storage_offset: int
    data_ptr: int
    numel: int
    element_size: int
    nbytes: int
    storage: int
    pool: Pool = Pool.UNKNOWN
    role: Role = Role.UNKNOWN
    state: ArgState = ArgState.PENDING
    reason: str | None = None
    values: TensorStats | None = None
    observed: Observation | None = None
    values_after: TensorStats | None = None
    observed_after: Observation | None = None


@attrs.frozen
class ScalarArg:
    """A number, bool or other plain value, lossless."""

    kind: ClassVar[ArgKind] = ArgKind.SCALAR

    type: str
    value: Any


@attrs.frozen
class ConstexprArg:
    """A compile-time argument: plain values lossless, anything else as its capped repr.

    ``size`` is the length of the whole repr, in characters, where it was cut.
    """

    kind: ClassVar[ArgKind] = ArgKind.CONSTEXPR

    type: str
    value: Any
    size: int | None = None


@attrs.frozen
class NoneArg:
    """A None, as an absent pointer."""

    kind: ClassVar[ArgKind] = ArgKind.NONE

    type: str = "NoneType"


@attrs.frozen
class TupleArg:
    """A tuple or namedtuple; ``fields`` are a namedtuple's field names."""

    kind: ClassVar[ArgKind] = ArgKind.TUPLE

    type: str
    items: tuple[Arg, ...]
    fields: tuple[str, ...] | None = None


@attrs.frozen
class DescriptorArg:
    """A tensor descriptor (TMA): its base tensor and its block geometry.

    ``attributes`` are the descriptor's further attributes, as plain values or capped reprs.
    """

    kind: ClassVar[ArgKind] = ArgKind.DESCRIPTOR

    type: str
    base: Arg | None
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    block_shape: tuple[int, ...] | None
    padding: str | None = None
    layout: str | None = None
    attributes: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class FunctionArg:
    """A function passed to a kernel, usually another @triton.jit one."""

    kind: ClassVar[ArgKind] = ArgKind.FUNCTION

    type: str
    name: str


@attrs.frozen
class ObjectArg:
    """Anything else: its capped repr. ``size`` is the whole repr's length where it was cut."""

    kind: ClassVar[ArgKind] = ArgKind.OBJECT

    type: str
    repr: str
    size: int | None = None


Arg = (
    TensorArg
    | ScalarArg
    | ConstexprArg
    | NoneArg
    | TupleArg
    | DescriptorArg
    | FunctionArg
    | ObjectArg
)


def parts(path: str, arg: Arg) -> Iterator[tuple[str, Arg]]:
    """The direct parts of a tuple or a descriptor, each with its path; of others none."""
    if isinstance(arg, TupleArg):
        names = [f".{name}" for name in arg.fields or ()]
        for position, item in enumerate(arg.items):
            yield path + (names[position] if position < len(names) else f"[{position}]"), item
    elif isinstance(arg, DescriptorArg) and arg.base is not None:
        yield f"{path}.base", arg.base


@attrs.frozen
class KernelInfo:
    """A compiled kernel.

    ``shared`` and the scratch sizes are bytes; ``n_regs`` and ``n_spills`` are per thread and None
    until the kernel was loaded. ``source`` is the kernel's Python text; where there is none,
    ``source_missing`` says why. ``ir`` maps a stage (``ttir``, ``ptx``) to its text (``ir=True``).
    ``roles`` maps an argument's path to what the kernel may do with it.
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
            yield attrs.evolve(self, id=self.id + step, count=1, capture=capture)


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
