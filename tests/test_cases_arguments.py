"""Cases from public reports: values, arguments, and living with other tools."""

from __future__ import annotations

import dataclasses
import enum
import gc
import linecache
import logging
import math
import types
from collections import namedtuple

import attrs
import case_kernels
import kernels
import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.tools.tensor_descriptor import TensorDescriptor

import lazytrace
from lazytrace.testing import simulate

pytestmark = pytest.mark.core

Config = namedtuple("Config", "scale tensors")


@attrs.frozen
class Recorded:
    """What one launch left in memory and in the file."""

    memory: lazytrace.LaunchRecord
    file: lazytrace.LaunchRecord


@pytest.fixture
def recorded(tmp_path):
    """Traces one call and gives its only record, from memory and from the file."""

    def run(call):
        with lazytrace.trace(tmp_path / "t.ndjson", eager_samples=None) as tracer:
            call()
            torch.cuda.synchronize()
        (memory,) = tracer.records()
        (file,) = lazytrace.read(tracer.path).launches
        return Recorded(memory, file)

    return run


def tensor(device, values, **options):
    return torch.tensor(values, device=device.torch_device, **options)


# Values


def test_a_zero_size_tensor_is_empty(device, recorded):
    """C18: state empty, no error, no values."""
    x = torch.empty(0, 7, device=device.torch_device)
    found = recorded(lambda: case_kernels.ignore[(1,)](x, x, 5))
    assert found.memory == found.file
    argument = found.memory.args["x"]
    assert (argument.state, argument.values, argument.shape) == ("empty", None, (0, 7))
    assert (argument.numel, argument.nbytes) == (0, 0)
    assert found.memory.state == "complete"


def test_a_tensor_of_one_element_has_no_deviation(device, recorded):
    """C18: std of a 0-d tensor is None, and no NaN was found."""
    x = tensor(device, 2.5)
    found = recorded(lambda: case_kernels.ignore[(1,)](x, x, 5))
    assert found.memory == found.file
    argument = found.memory.args["x"]
    assert (argument.shape, argument.strides, argument.numel) == ((), (), 1)
    values = argument.values
    assert (values.min, values.max, values.mean, values.std) == (2.5, 2.5, 2.5, None)
    assert (values.nan_count, values.first_nonfinite_index) == (0, None)


def test_integers_are_exact(device, recorded):
    """C20: 2**53 + 1 and the least int64 are not rounded, the mean is the nearest float."""
    x = tensor(device, [2**53 + 1, -(2**63), 0, 2**62 + 1], dtype=torch.int64)
    found = recorded(lambda: case_kernels.ignore[(1,)](x, x, 5))
    assert found.memory == found.file
    values = found.memory.args["x"].values
    assert (values.min, values.max) == (-(2**63), 2**62 + 1)
    assert values.mean == (2**53 + 1 - 2**63 + 2**62 + 1) / 4
    assert values.zero_count == 1


def test_the_largest_integer_that_no_float_holds_is_exact(device, recorded):
    """C20: 2**53 + 1 alone."""
    x = tensor(device, [2**53 + 1], dtype=torch.int64)
    values = recorded(lambda: case_kernels.ignore[(1,)](x, x, 5)).memory.args["x"].values
    assert (values.min, values.max) == (2**53 + 1, 2**53 + 1)


def test_booleans_are_counted_as_zero_and_one(device, recorded):
    """C20: min, max and mean of True and False, and how many are False."""
    x = tensor(device, [True, False, False, False])
    values = recorded(lambda: case_kernels.ignore[(1,)](x, x, 5)).memory.args["x"].values
    assert (values.min, values.max, values.mean, values.zero_count) == (0, 1, 0.25, 3)


def test_non_finite_values_are_counted_apart(device, recorded):
    """NaN and infinities are counted, and left out of min, max, mean and std."""
    x = tensor(device, [1.0, math.inf, math.nan, -math.inf, 3.0, -0.0, math.nan])
    values = recorded(lambda: case_kernels.ignore[(1,)](x, x, 5)).memory.args["x"].values
    assert (values.nan_count, values.posinf_count, values.neginf_count) == (2, 1, 1)
    assert (values.min, values.max, values.zero_count) == (0.0, 3.0, 1)
    assert values.mean == pytest.approx(4 / 3)
    assert values.first_nonfinite_index == 1


def test_values_are_the_views_own(device, recorded):
    """C21's kind: a strided, offset view is described and read exactly, nothing around it."""
    base = torch.arange(24.0, device=device.torch_device).reshape(4, 6)
    view = base[1:3, 1::2].t()
    found = recorded(lambda: case_kernels.ignore[(1,)](view, base, 5))
    assert found.memory == found.file
    argument = found.memory.args["x"]
    assert (argument.shape, argument.strides, argument.storage_offset) == ((3, 2), (2, 6), 7)
    assert (argument.nbytes, argument.data_ptr) == (44, view.data_ptr())
    assert argument.storage == found.memory.args["y"].storage
    assert (argument.values.min, argument.values.max, argument.values.mean) == (7.0, 17.0, 12.0)


def test_an_expanded_view_counts_its_logical_elements(device, recorded):
    """A stride of zero multiplies: statistics are over what the kernel sees."""
    view = tensor(device, [1.0, 0.0]).unsqueeze(1).expand(2, 5)
    values = recorded(lambda: case_kernels.ignore[(1,)](view, view, 5)).memory.args["x"].values
    assert (values.zero_count, values.mean) == (5, 0.5)
    assert values.std == pytest.approx((2.5 / 9) ** 0.5)


# Lifetimes


def test_a_view_made_for_the_launch_is_not_lost_with_it(device):
    """C25: the view dies at once, its storage lives: values, and no problem."""
    x = torch.ones(2, 2, device=device.torch_device)
    with lazytrace.trace() as tracer:
        graph = case_kernels.captured(lambda: kernels.scale_[(1,)](x.view(-1), 4, 3.0, BLOCK=4))
        gc.collect()
        graph.replay()
        device.synchronize()
        (record,) = tracer.records()
        assert tracer.problems() == []
    argument = record.args["x"]
    assert (argument.shape, argument.state, argument.values.max) == ((4,), "materialized", 3.0)


def test_memory_of_a_dead_storage_is_expired_and_never_read(device):
    """A temporary that is gone before the flush has no values of somebody else's."""
    with lazytrace.trace() as tracer:
        case_kernels.ignore[(1,)](torch.ones(4, device=device.torch_device), None, 5)
        gc.collect()
        device.synchronize()
        (record,) = tracer.records()
    argument = record.args["x"]
    assert (argument.state, argument.reason) == ("expired", "storage_freed")
    assert (argument.values, argument.shape, record.state) == (None, (4,), "complete")


# Arguments


def test_tuples_keep_their_structure_and_describe_their_tensors(device, recorded):
    """C31: nested tuples and namedtuples, by path and as a whole; no tensor is printed."""
    x = torch.full((3,), 2.0, device=device.torch_device)
    y = torch.full((2, 2), 7.0, device=device.torch_device)
    config = Config(scale=0.5, tensors=(x, (None, y)))
    found = recorded(lambda: case_kernels.ignore[(1,)](x, config, 5))
    assert found.memory == found.file
    args = found.memory.args
    assert list(args) == [
        "x", "y", "y.scale", "y.tensors", "y.tensors[0]", "y.tensors[1]",
        "y.tensors[1][0]", "y.tensors[1][1]", "value",
    ]  # fmt: skip
    assert (args["y"].kind, args["y"].type, args["y"].fields) == (
        "tuple",
        "Config",
        ("scale", "tensors"),
    )
    assert (args["y.scale"].kind, args["y.scale"].value) == ("scalar", 0.5)
    assert args["y.tensors[1][0]"].kind == "none"
    assert args["y.tensors[0]"].storage == args["x"].storage
    assert args["y.tensors[1][1]"].shape == (2, 2)
    assert args["y.tensors[1][1]"].values.max == 7.0
    assert args["y"].items[1].items[1].items[1] == args["y.tensors[1][1]"]


def test_a_kernel_over_tuples_has_its_values(device):
    """C31: two tuples that a kernel really uses, captured."""
    ts = (tensor(device, [1.0, 2.0]), tensor(device, [10.0, 20.0]))
    out = torch.zeros(2, device=device.torch_device)
    with lazytrace.trace() as tracer:
        graph = case_kernels.captured(
            lambda: kernels.weighted_sum[(1,)](ts, out, (2.0, 0.5), 2, BLOCK=2)
        )
        graph.replay()
        device.synchronize()
        (record,) = tracer.records()
    assert out.tolist() == [7.0, 14.0]
    assert record.args["tensors[1]"].values.max == 20.0
    assert record.args["out"].values.max == 14.0
    assert record.args["weights[1]"].value == 0.5


def test_a_descriptor_is_described_with_its_base(device, recorded):
    """C32's kind: shape, strides and block of a TensorDescriptor, its base tracked as a tensor."""
    x = torch.arange(256.0, device=device.torch_device).reshape(16, 16)
    descriptor = TensorDescriptor.from_tensor(x, [8, 16])
    found = recorded(lambda: case_kernels.ignore[(1,)](x, descriptor, 5))
    assert found.memory == found.file
    argument = found.memory.args["y"]
    assert (argument.kind, argument.type) == ("descriptor", "TensorDescriptor")
    assert (argument.shape, argument.strides) == ((16, 16), (16, 1))
    assert argument.block_shape == (8, 16)
    assert argument.base == found.memory.args["y.base"]
    assert argument.base.storage == found.memory.args["x"].storage
    assert (argument.base.values.min, argument.base.values.max) == (0.0, 255.0)


def test_a_descriptor_whose_block_changes_is_another_argument(device):
    """C32's kind: autotuning pre-hooks mutate block_shape of one and the same descriptor."""
    x = torch.ones(16, 16, device=device.torch_device)
    descriptor = TensorDescriptor.from_tensor(x, [8, 16])
    with lazytrace.trace() as tracer:
        for rows in (8, 16, 16):
            descriptor.block_shape = [rows, 16]
            case_kernels.ignore[(1,)](x, descriptor, 5)
        shown = [(record.args["y"].block_shape, record.count) for record in tracer.records()]
    assert shown == [((8, 16), 1), ((16, 16), 2)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {"kind": "none", "type": "NoneType"}),
        (tl.constexpr(7), {"kind": "constexpr", "type": "int", "value": 7}),
        (kernels._scaled, {"kind": "function", "type": "JITFunction", "name": "kernels._scaled"}),
        (2**63, {"kind": "scalar", "type": "int", "value": 2**63}),
        (-(2**63), {"kind": "scalar", "type": "int", "value": -(2**63)}),
        (True, {"kind": "scalar", "type": "bool", "value": True}),
        (1, {"kind": "scalar", "type": "int", "value": 1}),
        (-math.inf, {"kind": "scalar", "type": "float", "value": -math.inf}),
    ],
    ids=str,
)
def test_an_argument_is_typed(recorded, value, expected):
    """C33: what may stand in place of a tensor, each by its own kind."""
    with simulate(execute=False):
        found = recorded(lambda: case_kernels.ignore[(1,)](torch.ones(2), value, 5))
    assert found.memory == found.file
    argument = found.memory.args["y"]
    assert {name: getattr(argument, name) for name in expected} == expected
    assert type(getattr(argument, "value", None)) is type(expected.get("value"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", ("constexpr", "str", "text")),
        (tl.float16, ("constexpr", "dtype", "triton.language.float16")),
        (torch.bfloat16, ("constexpr", "dtype", "torch.bfloat16")),
        (2**70, ("constexpr", "int", 2**70)),
        (-(2**63) - 1, ("constexpr", "int", -(2**63) - 1)),
        (math.inf, ("constexpr", "float", math.inf)),
        (-0.0, ("constexpr", "float", -0.0)),
        (b"\x00\xff", ("constexpr", "bytes", b"\x00\xff")),
        (3 + 4j, ("constexpr", "complex", 3 + 4j)),
        (True, ("constexpr", "bool", True)),
    ],
    ids=repr,
)
def test_a_compile_time_constant_is_lossless(simulated, recorded, value, expected):
    """C33 and C34: any type on a constexpr parameter, in memory and in the file."""
    found = recorded(lambda: case_kernels.ignore_constexpr[(1,)](torch.ones(2), value))
    argument = found.file.args["thing"]
    assert found.memory == found.file
    assert (argument.kind, argument.type, argument.value) == expected
    assert type(argument.value) is type(expected[2])
    assert repr(argument.value) == repr(expected[2])


def test_nan_is_kept_and_is_no_other_number(simulated, recorded):
    """C34: a NaN constant comes back as NaN."""
    found = recorded(lambda: case_kernels.ignore_constexpr[(1,)](torch.ones(2), math.nan))
    assert math.isnan(found.memory.args["thing"].value)
    assert math.isnan(found.file.args["thing"].value)


@pytest.mark.parametrize("value", ["\ud800", {1: "one", None: "none", "$int": 2}], ids=repr)
def test_a_value_that_triton_cannot_hash_is_kept_where_it_does_not_need_to(
    simulated, recorded, value
):
    """C34: a lone surrogate, and a dict with keys that JSON does not have."""
    x = torch.ones(2)
    compiled = case_kernels.ignore_constexpr.warmup(x, 5, grid=(1,))
    found = recorded(lambda: compiled[(1, 1, 1)](x, value))
    assert found.memory == found.file
    argument = found.file.args["thing"]
    shown = value if isinstance(value, str) else repr(value)
    assert (argument.kind, argument.type, argument.value) == (
        "constexpr",
        type(value).__name__,
        shown,
    )


class Subclass(torch.Tensor):
    """A tensor subclass that would notice being touched."""

    touched = 0

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        if getattr(function, "__name__", "") in ("__repr__", "item", "cpu", "__str__"):
            Subclass.touched += 1
        return super().__torch_function__(function, kinds, args, kwargs or {})


def test_parameters_and_subclasses_are_described_with_their_class(device, recorded):
    """C35: the class name is kept, the values are read, nothing is printed."""
    parameter = torch.nn.Parameter(torch.full((3,), 4.0, device=device.torch_device))
    special = torch.full((2,), 9.0, device=device.torch_device).as_subclass(Subclass)
    found = recorded(lambda: case_kernels.ignore[(1,)](parameter, special, 5))
    args = found.memory.args
    assert found.memory == found.file
    assert (args["x"].type, args["y"].type) == ("Parameter", "Subclass")
    assert (args["x"].values.max, args["y"].values.max) == (4.0, 9.0)
    assert Subclass.touched == 0


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_a_tensor_without_memory_is_described_and_not_read(simulated, recorded, kind):
    """C35: no warning, no device read, and its values are said to be out of reach."""
    compiled = case_kernels.ignore.warmup(torch.ones(2), torch.ones(2), 5, grid=(1,))
    if kind == "meta":
        abstract = torch.empty(2, 3, device="meta")
    else:
        with FakeTensorMode():
            abstract = torch.empty(2, 3)
    found = recorded(lambda: compiled[(0, 1, 1)](abstract, None, 5))
    assert found.memory == found.file
    argument = found.memory.args["x"]
    assert (argument.shape, argument.strides, argument.numel) == ((2, 3), (3, 1), 6)
    assert argument.type == ("Tensor" if kind == "meta" else "FakeTensor")
    assert argument.values is None
    assert argument.state == "skipped"


class Megabytes:
    """Its repr is as long as a compiled binary."""

    def __init__(self, size):
        self.size = size

    def __repr__(self):
        return "b" * self.size


def test_a_huge_repr_is_capped_with_its_size(simulated, recorded):
    """C36: two megabytes of repr or of text leave a small record that says how long it was."""
    x, size = torch.ones(2), 2_000_000
    found = recorded(lambda: case_kernels.ignore_constexpr[(1,)](x, Megabytes(size)))
    argument = found.file.args["thing"]
    assert found.memory == found.file
    assert (argument.type, argument.size) == ("Megabytes", size)
    assert 0 < len(argument.value) <= 4096
    assert set(argument.value) == {"b"}


def test_a_huge_text_is_capped_with_its_size(simulated, recorded):
    """C36: the same for a string constant."""
    x = torch.ones(2)
    compiled = case_kernels.ignore_constexpr.warmup(x, 5, grid=(1,))
    argument = recorded(lambda: compiled[(1, 1, 1)](x, "z" * 2_000_000)).file.args["thing"]
    assert (argument.type, argument.size) == ("str", 2_000_000)
    assert 0 < len(argument.value) <= 4096


def test_a_repr_that_prints_a_tensor_does_not_break_a_capture(device):
    """The launch is recorded by the object's class, and the capture ends well."""
    x = torch.ones(2, device=device.torch_device)

    class Sneaky:
        def __repr__(self):
            return repr(x)

    compiled = case_kernels.ignore_constexpr.warmup(x, 5, grid=(1,))
    with lazytrace.trace() as tracer:
        case_kernels.captured(lambda: compiled[(1, 1, 1)](x, Sneaky())).replay()
        device.synchronize()
        (record,) = tracer.records()
    assert record.state == "complete"
    assert (record.args["thing"].type, record.args["thing"].value) == ("Sneaky", "<Sneaky>")


class Mode(enum.Enum):
    """Printed by Python's own code."""

    FAST = 1


@dataclasses.dataclass
class Plain:
    """Printed by the code that dataclasses writes."""

    mode: Mode
    sizes: tuple


@dataclasses.dataclass
class Written(Plain):
    """Printed by code of its own."""

    def __repr__(self):
        raise AssertionError("called during a capture")


@pytest.mark.parametrize(
    ("thing", "shown"),
    [
        (Mode.FAST, "<Mode.FAST: 1>"),
        (Plain(Mode.FAST, (1, 2)), "Plain(mode=<Mode.FAST: 1>, sizes=(1, 2))"),
        (torch.float16, "torch.float16"),
        ({"a": [torch.device("cpu")]}, "{'a': [device(type='cpu')]}"),
        (tl.float32, repr(tl.float32)),
        (Written(Mode.FAST, ()), "<Written>"),
        ([Written(Mode.FAST, ())], "<list>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_inside_a_capture_only_known_classes_are_printed(simulated, thing, shown):
    """Enums, dataclasses, dtypes and containers of plain values; of others the class is named."""
    x = torch.ones(2)
    compiled = case_kernels.ignore_constexpr.warmup(x, 5, grid=(1,))
    with lazytrace.trace() as tracer:
        case_kernels.captured(lambda: compiled[(1, 1, 1)](x, thing))
        (record,) = tracer.records()
    assert record.args["thing"].value == shown


class Unprintable:
    """A constant whose repr raises."""

    def __repr__(self):
        raise RuntimeError("no repr")


def test_a_repr_that_raises_costs_neither_the_launch_nor_the_record(simulated, recorded):
    """C36's kind: the record says what happened instead."""
    x = torch.ones(2)
    compiled = case_kernels.ignore_constexpr.warmup(x, 5, grid=(1,))
    argument = recorded(lambda: compiled[(1, 1, 1)](x, Unprintable())).file.args["thing"]
    assert argument.type == "Unprintable"
    assert "RuntimeError" in argument.value


@attrs.frozen
class Holder:
    """An object with a tensor in a field: printing it would print the tensor."""

    tensor: torch.Tensor


def test_an_object_that_holds_a_tensor_is_not_printed(device, recorded):
    """C36's kind: a repr never touches a tensor, also inside a capture."""
    x = torch.ones(2, device=device.torch_device)
    compiled = case_kernels.ignore_constexpr.warmup(x, 5, grid=(1,))
    found = recorded(
        lambda: case_kernels.captured(lambda: compiled[(1, 1, 1)](x, Holder(x))).replay()
    )
    assert "tensor(" not in found.memory.args["thing"].value
    assert found.memory.args["thing"].type == "Holder"
    assert found.memory.state == "complete"


def test_a_kernel_whose_source_is_not_on_disk_is_recorded(device, recorded):
    """C37: a notebook's cell or exec: the record is kept, with the text Triton kept."""
    source = "def cell(x, value):\n    pass\n"
    linecache.cache["<cell 7>"] = (len(source), None, source.splitlines(True), "<cell 7>")
    module = types.ModuleType("notebook")
    exec(compile(source, "<cell 7>", "exec"), vars(module))
    kernel = triton.jit(module.cell)
    x = torch.ones(2, device=device.torch_device)
    kernel.warmup(x, 5, grid=(1,))
    del linecache.cache["<cell 7>"]
    found = recorded(lambda: kernel[(1,)](x, 5))
    assert found.memory == found.file
    info = found.file.kernel
    assert (info.name, info.file, info.line) == ("cell", "<cell 7>", 1)
    assert info.source is not None or info.source_missing is not None
    assert found.file.args["x"].shape == (2,)


# Living with others


class Faulty:
    """An argument that our description stumbles over, and Triton does not."""

    dtype = torch.float32

    def __init__(self, tensor):
        self.tensor = tensor

    def data_ptr(self):
        return self.tensor.data_ptr()

    @property
    def shape(self):
        raise ValueError("a property that raises")


def test_a_fault_of_ours_is_contained_counted_and_reported_once(device, caplog):
    """C38: the user's launch goes on, one log entry tells, problems() counts."""
    x = torch.ones(4, device=device.torch_device)
    with caplog.at_level(logging.ERROR, logger="lazytrace"), lazytrace.trace() as tracer:
        for _ in range(3):
            kernels.scale_[(1,)](Faulty(x), 4, 2.0, BLOCK=4)
        kernels.scale_[(1,)](x, 4, 2.0, BLOCK=4)
        device.synchronize()
        (record,) = tracer.records()
        (problem,) = tracer.problems()
    assert x.tolist() == [16.0] * 4
    assert record.args["x"].values.max == 16.0
    assert problem.kind == "tracer_error"
    assert problem.message.startswith("3 contained in the launch hook")
    assert "a property that raises" in problem.message
    assert len(caplog.records) == 1


def hook_slot():
    return triton.knobs.runtime


@pytest.fixture
def enter_hook():
    """Puts Triton's enter hook back, whatever a test assigned to it."""
    before = hook_slot().launch_enter_hook
    yield
    hook_slot().launch_enter_hook = before


def test_a_replaced_hook_slot_stays_the_other_tools(device, enter_hook):
    """C39: a callable assigned while we trace sees its launches, so do we, and it stays."""
    x, seen = torch.ones(2, device=device.torch_device), []

    def other(metadata):
        seen.append(metadata.get()["name"])

    with lazytrace.trace() as tracer:
        case_kernels.ignore[(1,)](x, x, 5)
        hook_slot().launch_enter_hook = other
        case_kernels.ignore[(1,)](x, x, 5)
        case_kernels.ignore[(1,)](x, x, 6)
        assert sum(record.count for record in tracer.records()) == 3
    assert hook_slot().launch_enter_hook is other
    assert seen == ["ignore", "ignore"]


def test_a_hook_slot_set_to_none_is_survived(device, enter_hook):
    """C39: TritonParse leaves None behind, where later Tritons have a chain."""
    x = torch.ones(2, device=device.torch_device)
    hook_slot().launch_enter_hook = None
    with lazytrace.trace() as tracer:
        case_kernels.ignore[(1,)](x, x, 5)
        case_kernels.ignore[(1,)](x, x, 5)
        assert [record.count for record in tracer.records()] == [2]
    assert hook_slot().launch_enter_hook is None


def test_the_users_launch_metadata_runs_once_a_launch_and_only_for_its_reader(
    device, enter_hook, monkeypatch
):
    """C41's kind: we never call a user's launch_metadata function."""
    x, calls = torch.ones(4, device=device.torch_device), []
    monkeypatch.setattr(
        kernels.copy,
        "launch_metadata",
        lambda grid, kernel, args: calls.append(1) or {"flops": 8.0},
    )
    with lazytrace.trace() as tracer:
        kernels.copy[(1,)](x, x, 4, BLOCK=4)
        assert calls == []
        hook_slot().launch_enter_hook = lambda metadata: metadata.get()
        kernels.copy[(1,)](x, x, 4, BLOCK=4)
        assert calls == [1]
        assert [record.count for record in tracer.records()] == [2]


def test_another_tools_wrapper_over_ours_is_left_in_place(device, caplog):
    """C39's kind: what wraps our patch stays, and ours beneath it passes through."""
    from triton.compiler.compiler import CompiledKernel

    x, calls = torch.ones(2, device=device.torch_device), []
    original = CompiledKernel.launch_metadata
    try:
        with caplog.at_level(logging.WARNING, logger="lazytrace"), lazytrace.trace() as tracer:
            ours = CompiledKernel.launch_metadata

            def theirs(self, grid, stream, *args):
                calls.append(1)
                return ours(self, grid, stream, *args)

            CompiledKernel.launch_metadata = theirs
            case_kernels.ignore[(1,)](x, x, 5)
        assert CompiledKernel.launch_metadata is theirs
        case_kernels.ignore[(1,)](x, x, 5)
    finally:
        CompiledKernel.launch_metadata = original
    assert calls == [1, 1]
    assert [record.count for record in tracer.records()] == [1]
    assert "CompiledKernel.launch_metadata" in caplog.text
