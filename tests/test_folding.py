"""Folding tells the truth: whatever changes between two launches shows, and nothing else splits."""

from __future__ import annotations

import gc
import math
from itertools import pairwise

import case_kernels
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import lazytrace
from lazytrace.testing import simulate

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def simulation():
    """Nothing is executed: descriptions alone matter here."""
    with simulate(execute=False) as running:
        yield running


def launch(x, y=None, value=5):
    case_kernels.ignore[(1,)](x, y, value)


def truth(tensor):
    """What a record of a launch with this tensor must say."""
    return (
        type(tensor).__name__,
        tuple(tensor.shape),
        tensor.stride(),
        str(tensor.dtype).removeprefix("torch."),
        tensor.storage_offset(),
        tensor.data_ptr(),
    )


def told(argument):
    """What the record says."""
    return (
        argument.type,
        argument.shape,
        argument.strides,
        argument.dtype,
        argument.storage_offset,
        argument.data_ptr,
    )


def matrix():
    return torch.arange(12.0).reshape(3, 4)


def set_data(make):
    def mutate(tensor):
        tensor.data = make(tensor)

    return mutate


MUTATIONS = {
    "nothing": (matrix, lambda x: None, True),
    "values": (matrix, lambda x: x.mul_(2), True),
    "requires_grad_": (matrix, lambda x: x.requires_grad_(), True),
    "t_": (matrix, lambda x: x.t_(), False),
    "t_ of a square": (lambda: torch.ones(3, 3), lambda x: x.t_(), False),
    "transpose_": (matrix, lambda x: x.transpose_(0, 1), False),
    "resize_ up": (matrix, lambda x: x.resize_(5, 5), False),
    "resize_ down": (matrix, lambda x: x.resize_(2, 2), False),
    "set_ to other": (matrix, lambda x: x.set_(torch.ones(3, 4)), False),
    "set_ to a part": (matrix, lambda x: x.set_(x.untyped_storage(), 4, (2, 4), (4, 1)), False),
    "as_strided_": (matrix, lambda x: x.as_strided_((3, 2), (4, 2)), False),
    "as_strided_ offset": (matrix, lambda x: x.as_strided_((2, 4), (4, 1), 4), False),
    "squeeze_": (lambda: torch.ones(3, 1, 4), lambda x: x.squeeze_(), False),
    "unsqueeze_": (matrix, lambda x: x.unsqueeze_(0), False),
    ".data = other": (matrix, set_data(lambda x: torch.ones(3, 4)), False),
    ".data = transposed self": (matrix, set_data(lambda x: x.data.t()), False),
    ".data = transposed square": (lambda: torch.ones(3, 3), set_data(lambda x: x.data.t()), False),
    ".data = other dtype": (matrix, set_data(lambda x: x.data.view(torch.int32)), False),
    ".data = same storage": (matrix, set_data(lambda x: x.data.view(3, 4)), True),
    ".data = half of the storage": (matrix, set_data(lambda x: x.data[:, :2]), False),
    "swap_tensors": (
        matrix,
        lambda x: torch.utils.swap_tensors(x, torch.zeros(3, 4)),
        False,
    ),
    "storage.resize_ up": (matrix, lambda x: x.untyped_storage().resize_(4096), False),
    "share_memory_": (matrix, lambda x: x.share_memory_(), False),
    "six dimensions": (
        lambda: torch.ones(1, 2, 1, 2, 1, 2),
        lambda x: x.transpose_(1, 5),
        False,
    ),
    "six dimensions unchanged": (lambda: torch.ones(1, 2, 1, 2, 1, 2), lambda x: None, True),
    "zero size unchanged": (lambda: torch.ones(0, 3), lambda x: None, True),
    "zero size": (lambda: torch.ones(0, 3), lambda x: x.t_(), False),
    "no dimensions": (lambda: torch.tensor(1.0), lambda x: x.unsqueeze_(0), False),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_between_two_launches_shows(name):
    """Each launch is described as its tensor was then; the unchanged fold into one run."""
    make, mutate, folds = MUTATIONS[name]
    x = make()
    with lazytrace.trace() as tracer:
        before = truth(x)
        launch(x)
        first = x.untyped_storage()
        mutate(x)
        after = truth(x)
        launch(x)
        same_storage = x.untyped_storage() is first
        runs = tracer.records()
        shown = [record.args["x"] for record in tracer.records(expand=True)]
    assert [told(argument) for argument in shown] == [before, after]
    assert (shown[0].storage == shown[1].storage) == same_storage
    assert [record.count for record in runs] == ([2] if folds else [1, 1])


def test_a_mutation_that_is_undone_leaves_three_runs_of_two_descriptions():
    """t_ and back: the third launch is the first's description again, in a run of its own."""
    x = matrix()
    with lazytrace.trace() as tracer:
        expected = []
        for _ in range(3):
            expected.append(truth(x))
            launch(x)
            x.t_()
        records = tracer.records()
    assert [told(record.args["x"]) for record in records] == expected
    assert expected[0] == expected[2] != expected[1]


def inference_tensor():
    with torch.inference_mode():
        return torch.ones(3)


class Subclass(torch.Tensor):
    """A tensor subclass without behaviour of its own."""


def pairs():
    base = torch.arange(4.0)
    array = np.arange(4.0, dtype=np.float32)
    return {
        "a view": (base, base[1:], False),
        "an equal view": (base.view(4), base.view(4), True),
        "an alias": (base, base.detach(), True),
        "a dtype": (base, base.view(torch.int32), False),
        "a parameter": (base, torch.nn.Parameter(base), False),
        "a subclass": (base, base.as_subclass(Subclass), False),
        "equal subclasses": (base.as_subclass(Subclass), base.as_subclass(Subclass), True),
        "parameters": (torch.nn.Parameter(base), torch.nn.Parameter(base), True),
        "a clone": (base, base.clone(), False),
        "two storages over one array": (torch.from_numpy(array), torch.from_numpy(array), False),
        "two storages over one buffer": (
            torch.frombuffer(array, dtype=torch.float32),
            torch.frombuffer(array, dtype=torch.float32),
            False,
        ),
        "inference tensors": (inference_tensor(), inference_tensor(), False),
    }


@pytest.mark.parametrize("name", pairs())
def test_another_tensor_is_another_argument(name):
    """Two tensors fold only if they are one view of one storage, of one class."""
    first, second, folds = pairs()[name]
    with lazytrace.trace() as tracer:
        launch(first)
        launch(second)
        runs = tracer.records()
        shown = [record.args["x"] for record in tracer.records(expand=True)]
    assert [told(argument) for argument in shown] == [truth(first), truth(second)]
    assert (shown[0].storage == shown[1].storage) == (
        first.untyped_storage() is second.untyped_storage()
    )
    assert [record.count for record in runs] == ([2] if folds else [1, 1])


def test_one_inference_tensor_folds_with_itself():
    """Inference tensors have no version counter, and need none."""
    x = inference_tensor()
    with lazytrace.trace() as tracer:
        launch(x)
        launch(x)
        assert [record.count for record in tracer.records()] == [2]


def test_arguments_are_compared_by_position():
    """x, y and y, x and x, x are three different sets of arguments."""
    x, y = torch.ones(4), torch.ones(4)
    with lazytrace.trace() as tracer:
        for first, second in ((x, y), (x, y), (y, x), (x, x), (x, x)):
            launch(first, second)
        records = tracer.records()
    assert [record.count for record in records] == [2, 1, 2]
    a, b = records[0].args["x"].storage, records[0].args["y"].storage
    assert a != b
    assert [(r.args["x"].storage, r.args["y"].storage) for r in records] == [
        (a, b),
        (b, a),
        (a, a),
    ]


SCALARS = [True, 1, 1.0, False, 0, 0.0, -0.0, math.nan, 2, 2.0, None, 2**40, -1, math.inf]


@pytest.mark.parametrize("first", SCALARS, ids=repr)
def test_scalars_are_told_apart_by_value_and_class(first):
    """True, 1 and 1.0, and 0.0 and -0.0, are different also to one and the same binary."""
    x = torch.ones(4)
    compiled = case_kernels.ignore.warmup(x, x, 5, grid=(1,))
    sequence = [scalar for second in SCALARS for scalar in (first, second)]
    with lazytrace.trace() as tracer:
        for scalar in sequence:
            compiled[(1, 1, 1)](x, x, scalar)
        shown = [record.args["value"] for record in tracer.records(expand=True)]
        runs = tracer.records()
    values = [getattr(argument, "value", None) for argument in shown]
    assert [repr(value) for value in values] == [repr(scalar) for scalar in sequence]
    assert [argument.type for argument in shown] == [type(scalar).__name__ for scalar in sequence]
    changes = sum(repr(a) != repr(b) for a, b in pairwise(sequence))
    assert len(runs) == changes + 1


def test_a_tensor_and_none_are_told_apart():
    """None between two launches with a tensor, to one and the same binary."""
    x = torch.ones(4)
    compiled = case_kernels.ignore.warmup(x, x, 5, grid=(1,))
    with lazytrace.trace() as tracer:
        for argument in (x, None, None, x, 7):
            compiled[(1, 1, 1)](x, argument, 5)
        shown = [(record.args["y"].kind, record.count) for record in tracer.records()]
    assert shown == [("tensor", 1), ("none", 2), ("tensor", 1), ("scalar", 1)]


def test_tuples_are_compared_by_what_they_hold():
    """An equal tuple folds, one with another tensor, scalar class or length does not."""
    x, y = torch.ones(4), torch.ones(4)
    with lazytrace.trace() as tracer:
        for argument in ((x, 2), (x, 2), (y, 2), (y, 2.0), (y, 2.0, None), (y, 2.0, None)):
            launch(x, argument)
        counts = [record.count for record in tracer.records()]
    assert counts == [2, 1, 1, 2]


def test_wrapped_tensors_fold_by_what_they_wrap():
    """triton.reinterpret makes a new wrapper for each launch: equal ones are one argument."""
    x, y = torch.full((4,), 2.0), torch.ones(4)
    with lazytrace.trace(eager_samples=None) as tracer:
        for tensor, dtype in ((x, tl.int32), (x, tl.int32), (x, tl.float32), (y, tl.float32)):
            launch(triton.reinterpret(tensor, dtype))
        launch(y)
        shown = [(r.count, r.args["x"].type, r.args["x"].dtype) for r in tracer.records()]
        values = [record.args["x"].values.max for record in tracer.records()]
    assert shown == [
        (2, "TensorWrapper", "int32"),
        (1, "TensorWrapper", "float32"),
        (1, "TensorWrapper", "float32"),
        (1, "Tensor", "float32"),
    ]
    assert values == [0x40000000, 2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "change",
    ["grid", "stream", "mark", "kernel", "capture"],
)
def test_what_is_around_the_arguments_splits_a_run(change):
    """Grid, stream, mark, kernel and capture: identical launches apart from one of them."""
    x = torch.ones(4)
    side = torch.cuda.Stream()
    with lazytrace.trace() as tracer:
        launch(x)
        launch(x)
        if change == "grid":
            case_kernels.ignore[(2,)](x, None, 5)
        elif change == "stream":
            with torch.cuda.stream(side):
                launch(x)
        elif change == "mark":
            tracer.mark("next")
            launch(x)
        elif change == "kernel":
            case_kernels.ignore_constexpr[(1,)](x, 5)
        else:
            case_kernels.captured(lambda: launch(x))
        launch(x)
        records = tracer.records()
    assert [record.count for record in records] in ([2, 1, 1], [2, 2])
    assert sum(record.count for record in records) == 4
    assert [record.id for record in records][:2] == [0, 2]
    if change == "mark":
        assert [record.mark for record in records] == [None, "next"]


def test_a_dead_tensors_address_is_not_taken_for_it():
    """Tensors that are born where another died are new storages, each with its own record."""
    with lazytrace.trace() as tracer:
        pointers = []
        for index in range(50):
            x = torch.full((1000,), float(index))
            pointers.append(x.data_ptr())
            launch(x)
            del x
        records = tracer.records()
    assert [record.count for record in records] == [1] * 50
    assert [record.args["x"].data_ptr for record in records] == pointers
    assert len({record.args["x"].storage for record in records}) == 50
    assert len(set(pointers)) < 50, "the allocator reused no address: the test shows nothing"


def test_values_of_a_reborn_address_go_to_the_newborn_only():
    """The dead one's values are expired, the living one's are its own."""
    with lazytrace.trace(flush_at="exit", eager_samples=None) as tracer:
        x = torch.full((1000,), 1.0)
        address = x.data_ptr()
        launch(x)
        del x
        gc.collect()
        keep = []
        for _ in range(20):
            keep.append(torch.full((1000,), 2.0))
            if keep[-1].data_ptr() == address:
                break
        launch(keep[-1])
        dead, alive = (record.args["x"] for record in tracer.records())
    assert (dead.state, dead.values) == ("expired", None)
    assert alive.values.max == 2.0


def test_a_run_grows_on_after_it_was_read():
    """A launch after a flush begins a new run: values are of those launched before."""
    x = torch.ones(4)
    with lazytrace.trace(eager_samples=None) as tracer:
        launch(x)
        launch(x)
        tracer.flush()
        x.fill_(3.0)
        launch(x)
        shown = [(record.count, record.args["x"].values.max) for record in tracer.records()]
    assert shown == [(2, 1.0), (1, 3.0)]


def test_folding_holds_under_a_torch_function_mode():
    """set_default_device is such a mode: identical launches still fold, others do not."""
    x = torch.ones(4)
    with lazytrace.trace() as tracer, torch.device("cpu"):
        launch(x)
        launch(x)
        x.unsqueeze_(0)
        launch(x)
        shown = [(record.count, record.args["x"].shape) for record in tracer.records()]
    assert shown == [(2, (4,)), (1, (1, 4))]
