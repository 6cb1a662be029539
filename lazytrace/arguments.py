"""The arguments of a launch: what was passed, its values, and when those were read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
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

    ``by_launch``: a later launch that was seen may have written there, by its argument's role and
    range of memory; ``overwritten_by`` is the last such launch in the order of launching. It may
    be the run's own last launch: then that one launch has its own value, and those of the run
    before it do not (``LaunchRecord.expanded`` says so of each). Of an argument that is only read
    it may be the launch itself, through another argument that lies in the same memory.
    ``possible``: no such launch is known. What torch's own operations, cuBLAS, NCCL or a copy
    write is not seen.
    """

    point: Point
    replay: int | None = None
    overwritten: Overwritten = Overwritten.POSSIBLE
    overwritten_by: int | None = None
    raced: bool = False


@attrs.frozen
class Blob:
    """Bytes of a tensor that were kept (``save_tensors``): its elements in row-major order.

    ``hash`` is their BLAKE2b-256 in hexadecimal. ``nbytes`` were kept, from the first element on,
    of the ``total_bytes`` that the view's logical elements have.
    """

    hash: str
    nbytes: int
    total_bytes: int

    @classmethod
    def of(cls, data: bytes, total_bytes: int) -> Blob:
        """The blob that these bytes are."""
        return cls(_digest(data), len(data), total_bytes)

    @property
    def cut(self) -> bool:
        """Whether the tensor has more bytes than were kept."""
        return self.nbytes < self.total_bytes

    @property
    def file(self) -> tuple[str, str] | None:
        """The directory and the name of its file in a trace's folder; None if it has no hash."""
        if _HASH.fullmatch(self.hash) is None:
            return None
        return self.hash[:2], f"{self.hash}.bin"

    def is_of(self, data: bytes) -> bool:
        """Whether these are its bytes."""
        return len(data) == self.nbytes and _digest(data) == self.hash


_HASH = re.compile("[0-9a-f]{64}")


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


@attrs.frozen
class Reading:
    """What became of one tensor argument's values: the part of a TensorArg that comes later."""

    state: ArgState
    reason: str | None = None
    values: TensorStats | None = None
    observed: Observation | None = None
    values_after: TensorStats | None = None
    observed_after: Observation | None = None
    data: Blob | None = None
    data_after: Blob | None = None
    data_reason: str | None = None


@attrs.frozen
class TensorArg:
    """A tensor argument: its static description, and its values once they are read.

    ``shape`` and ``strides`` are in elements, ``storage_offset`` too; ``nbytes`` is the number of
    bytes between the view's first and last element, inclusive. ``storage`` is the same number for
    every argument that lies in the same storage. ``data`` are the bytes that were kept
    (``save_tensors``) when ``values`` were read, ``data_after`` those beside ``values_after``;
    ``data_reason`` says why there are none where some were asked for.
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
    data: Blob | None = None
    data_after: Blob | None = None
    data_reason: str | None = None


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


def with_tensors(arg: Arg, change: Callable[[TensorArg], TensorArg]) -> Arg:
    """The argument with every tensor in it, itself included, replaced by what ``change`` gives."""
    if isinstance(arg, TensorArg):
        return change(arg)
    if isinstance(arg, TupleArg):
        return attrs.evolve(arg, items=tuple(with_tensors(item, change) for item in arg.items))
    if isinstance(arg, DescriptorArg) and arg.base is not None:
        return attrs.evolve(arg, base=with_tensors(arg.base, change))
    return arg
