"""The arguments of a launch: what was passed, its values, and when those were read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, ClassVar

import attrs


class WireEnum(str, Enum):
    """An enumeration whose members equal, and print as, the words of the file."""

    def __str__(self) -> str:
        return str.__str__(self)

    def __format__(self, spec: str) -> str:
        return str.__format__(self.value, spec)


class ArgKind(WireEnum):
    """What sort of argument was passed."""

    TENSOR = "tensor"
    SCALAR = "scalar"
    CONSTEXPR = "constexpr"
    NONE = "none"
    TUPLE = "tuple"
    DESCRIPTOR = "descriptor"
    FUNCTION = "function"
    OBJECT = "object"


class ArgState(WireEnum):
    """What became of one tensor argument's values."""

    PENDING = "pending"
    MATERIALIZED = "materialized"
    EXPIRED = "expired"
    FAILED = "failed"
    SKIPPED = "skipped"
    EMPTY = "empty"
    OFF = "off"


class Pool(WireEnum):
    """Whose memory a captured launch's argument lies in."""

    GRAPH = "graph"
    EXTERNAL = "external"
    UNKNOWN = "unknown"


class Role(WireEnum):
    """What the kernel may do with a tensor argument: an upper bound."""

    READ = "read"
    WRITE = "write"
    READ_WRITE = "read_write"
    UNKNOWN = "unknown"


class Point(WireEnum):
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


class Overwritten(WireEnum):
    """Whether something may have written the memory between the launch and the reading."""

    NO = "no"
    BY_LAUNCH = "by_launch"
    POSSIBLE = "possible"


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
