"""A small trace with every line type, for the tests of what is written and read."""

from __future__ import annotations

from lazytrace.lines import (
    SCHEMA_VERSION,
    ArgsLine,
    CaptureLine,
    EndLine,
    KernelLine,
    LaunchLine,
    Line,
    ProblemLine,
    ValuesLine,
)
from lazytrace.problems import Problem, ProblemKind
from lazytrace.records import (
    ArgState,
    CaptureState,
    ConstexprArg,
    DescriptorArg,
    Frame,
    KernelInfo,
    Observation,
    Outcome,
    Phase,
    Point,
    Reading,
    Role,
    ScalarArg,
    Session,
    TensorArg,
    TensorStats,
    TupleArg,
)


def tensor(**changes: object) -> TensorArg:
    """A contiguous float32 tensor of 2 x 3 in storage 1."""
    fields = {
        "type": "Tensor",
        "shape": (2, 3),
        "strides": (3, 1),
        "dtype": "float32",
        "device": "cuda:0",
        "storage_offset": 0,
        "data_ptr": 0x7F0000000000,
        "numel": 6,
        "element_size": 4,
        "nbytes": 24,
        "storage": 1,
    }
    return TensorArg(**{**fields, **changes})


def session(**changes: object) -> Session:
    """A session of process 7 on a host named node."""
    fields = {
        "schema_version": SCHEMA_VERSION,
        "lazytrace": "0.1.0",
        "python": "3.11.7",
        "torch": "2.13.0",
        "triton": "3.9.0",
        "host": "node",
        "pid": 7,
        "argv": ("train.py", "--name=\udcff"),
        "devices": ("NVIDIA H200",),
        "options": {"out": None, "values": "deferred"},
        "time_ns": 1_700_000_000_000_000_000,
        "monotonic_ns": 5,
    }
    return Session(**{**fields, **changes})


def kernel(number: int = 1, name: str = "add_kernel", **changes: object) -> KernelLine:
    """A kernel that reads x and writes out."""
    fields = {"roles": {"x": Role.READ, "out": Role.WRITE}, **changes}
    return KernelLine(number, KernelInfo(name, f"hash{number}", **fields))


def args(number: int = 1, **named: object) -> ArgsLine:
    """Two tensors in storages 1 and 2, a scalar and a constexpr; or the given ones."""
    given = named or {
        "x": tensor(),
        "out": tensor(storage=2),
        "n": ScalarArg("int", 6),
        "BLOCK": ConstexprArg("int", 1024),
    }
    return ArgsLine(number, given)


def nested_args(number: int = 1) -> ArgsLine:
    """A tuple, a namedtuple and a descriptor, whose tensors stand under their own paths too."""
    first, second, base = tensor(), tensor(storage=2), tensor(storage=3, shape=(6,), strides=(1,))
    pair = TupleArg("Pair", (second, ScalarArg("int", 2)), ("left", "right"))
    given = {
        "ts": TupleArg("tuple", (first, pair)),
        "ts[0]": first,
        "ts[1].left": second,
        "desc": DescriptorArg("TensorDescriptor", base, (6,), (1,), (2,), "zero"),
        "desc.base": base,
    }
    return ArgsLine(number, given)


def capture(number: int = 1, **changes: object) -> CaptureLine:
    """A capture that was replayed three times, with storage 2 in the graph's pool."""
    fields = {
        "graph": 4,
        "name": "bs=8",
        "epoch": 0,
        "cuda_id": 9,
        "stream": 11,
        "device": 0,
        "thread": 12,
        "time_ns": 100,
        "state": CaptureState.CAPTURED,
        "launches": 2,
        "replays": 3,
        "replays_read": 1,
        "graph_storages": (2,),
    }
    return CaptureLine(number, **{**fields, **changes})


def launch(number: int, **changes: object) -> LaunchLine:
    """An eager launch of kernel 1 with the arguments 1, values pending."""
    fields = {
        "kernel": 1,
        "args": 1,
        "grid": (6, 1, 1),
        "outcome": Outcome.SUBMITTED,
        "stream": 11,
        "device": 0,
        "thread": 12,
        "time_ns": 100 + number,
        "count": 1,
        "phase": Phase.RUN,
        "mark": None,
        "capture": None,
        "index": None,
        "values": ArgState.PENDING,
    }
    return LaunchLine(number, **{**fields, **changes})


def reading(low: float = -1.0, **changes: object) -> Reading:
    """Values read after the third replay."""
    fields = {
        "values": TensorStats(low, 1.0, 0.25, 0.5, zero_count=1),
        "observed": Observation(Point.AFTER_REPLAY, 3),
    }
    return Reading(ArgState.MATERIALIZED, **{**fields, **changes})


def problem(**changes: object) -> ProblemLine:
    """A non-finite value in launch 1."""
    fields = {"kernel": "add_kernel", "argument": "x", "launch": 1, "graph": 4, **changes}
    return ProblemLine(Problem(ProblemKind.NON_FINITE, "x holds 2 NaN", **fields))


def sample_trace() -> list[Line]:
    """Every line type: an eager run, two captured launches, values, a problem, the end."""
    return [
        session(),
        kernel(),
        args(),
        nested_args(2),
        launch(0, count=3, mark="warm up", call_site=(Frame("train.py", 3, "step"),)),
        capture(state=CaptureState.OPEN, replays=0, replays_read=0, graph_storages=None),
        launch(3, capture=1, index=0),
        launch(4, capture=1, index=1, args=2),
        capture(),
        ValuesLine((3,), {"x": reading(), "out": reading(0.0)}),
        problem(),
        session(rank=2, world_size=8),
        EndLine(900, launches=5, replays=3, unseen_launches=1, dropped={"max_pending": 2}),
    ]
