"""A flush in any state of torch: right values or still due, nothing raised, nothing changed."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager

import case_kernels
import kernels
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import lazytrace


class Refusing(TorchDispatchMode):
    """A dispatch mode that must see nothing of a flush."""

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        raise AssertionError(f"{function} was dispatched")


class RefusingFunctions(torch.overrides.TorchFunctionMode):
    """A torch function mode that must see nothing of a flush."""

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        raise AssertionError(f"{function} was called")


@contextmanager
def deterministic(device):
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def default_device(device):
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def default_dtype(device):
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def mem_pool(device):
    pool = torch.cuda.MemPool()
    # A capture whose end failed stays open for torch's allocator, and to destroy a pool then aborts
    # the process: this one is never destroyed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
    with torch.cuda.use_mem_pool(pool):
        yield


@contextmanager
def functorch_level(device):
    level = torch._C._functorch._vmap_increment_nesting(2, "error")
    try:
        assert level == 1
        yield
    finally:
        torch._C._functorch._vmap_decrement_nesting()


@contextmanager
def other_stream(device):
    with torch.cuda.stream(torch.cuda.Stream()):
        yield


@contextmanager
def other_device(device):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    with torch.cuda.device(1):
        yield


STATES = {
    "plain": (lambda device: torch.enable_grad(), True),
    "no_grad": (lambda device: torch.no_grad(), True),
    "inference_mode": (lambda device: torch.inference_mode(), True),
    "fake tensors": (lambda device: FakeTensorMode(), False),
    "functorch level": (functorch_level, False),
    "default device": (default_device, True),
    "default dtype": (default_dtype, True),
    "autocast": (lambda device: torch.autocast(device.torch_device, torch.bfloat16), True),
    "deterministic": (deterministic, True),
    "anomaly": (lambda device: torch.autograd.set_detect_anomaly(True), True),
    "dispatch mode": (lambda device: Refusing(), True),
    "function mode": (lambda device: RefusingFunctions(), True),
    "other stream": (other_stream, True),
    "other device": (other_device, True),
    "mem pool": (mem_pool, True),
}


def torch_state(device):
    """What a flush could leave changed."""
    found = {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled(device.torch_device),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": torch.get_default_dtype(),
        "functorch": torch._C._functorch.peek_interpreter_stack() is None,
        "modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "stream": torch.cuda.current_stream().cuda_stream,
        "device": torch.cuda.current_device(),
        "threads": threading.active_count(),
    }
    if device.name == "cuda":
        found["memory"] = torch.cuda.memory_stats(0)["allocated_bytes.all.allocated"]
        found["segments"] = torch.cuda.memory_stats(0)["segment.all.allocated"]
    return found


@pytest.mark.core
@pytest.mark.parametrize("name", STATES)
def test_a_flush_reads_the_right_values_or_leaves_them_due(device, name):
    """Values, or a reason why they are still due; torch's state is what it was."""
    if name in ("mem pool", "other device") and device.name != "cuda":
        pytest.skip("needs CUDA")
    enter, reads = STATES[name]
    eager = torch.arange(4.0, device=device.torch_device)
    captured = torch.ones(4, device=device.torch_device)
    rng = torch.random.get_rng_state()
    with lazytrace.trace(flush_at="exit", eager_samples=None) as tracer:
        kernels.scale_[(1,)](captured, 4, 1.0, BLOCK=4)
        tracer.flush(wait=True)  # the workspace is there
        case_kernels.ignore[(1,)](eager, eager, 5)
        graph = case_kernels.captured(lambda: kernels.scale_[(1,)](captured, 4, 3.0, BLOCK=4))
        graph.replay()
        device.synchronize()
        with enter(device):
            before = torch_state(device)
            result = lazytrace.flush(wait=True)
            problems = lazytrace.problems()
            inside = lazytrace.records()[1:]
            after = torch_state(device)
        outside = tracer.records()[1:]
    assert after == before
    assert problems == []
    assert torch.equal(torch.random.get_rng_state(), rng)
    if reads:
        assert (result.completed, result.still_due, result.reason) == (2, 0, None)
        assert [record.state for record in inside] == ["complete", "complete"]
    else:
        assert (result.completed, result.still_due) == (0, 2)
        assert result.reason
        assert [record.state for record in inside] == ["pending", "pending"]
    assert [record.state for record in outside] == ["complete", "complete"]
    assert (outside[0].args["x"].values.max, outside[0].args["x"].values.mean) == (3.0, 1.5)
    assert outside[1].args["x"].values.max == 3.0


@pytest.mark.core
def test_a_flush_on_another_thread_reads_the_right_values(device):
    """A thread that never launched anything may ask, and nothing of it is left."""
    x = torch.arange(4.0, device=device.torch_device)
    results = []
    with lazytrace.trace(flush_at="exit") as tracer:
        case_kernels.ignore[(1,)](x, x, 5)
        thread = threading.Thread(target=lambda: results.append(tracer.flush(wait=True)))
        thread.start()
        thread.join()
        (record,) = tracer.records()
    assert [(result.completed, result.still_due) for result in results] == [(1, 0)]
    assert record.args["x"].values.max == 3.0


@pytest.mark.core
def test_a_launch_in_a_vmap_is_seen_and_the_vmap_is_right(device):
    """A launch inside torch.func's transforms: recorded, read later, nothing raised."""
    x = torch.ones(4, device=device.torch_device)
    with lazytrace.trace() as tracer:

        def function(row):
            case_kernels.ignore[(1,)](x, x, 5)
            tracer.records()
            return row * 2

        doubled = torch.vmap(function)(torch.ones(3, 2, device=device.torch_device))
        device.synchronize()
        (record,) = tracer.records()
        assert tracer.problems() == []
    assert torch.equal(doubled, torch.full_like(doubled, 2.0))
    assert (record.state, record.args["x"].values.max) == ("complete", 1.0)


@pytest.mark.core
def test_tensors_that_require_grad_are_read_without_a_graph(device):
    """A parameter's values are read, its grad_fn and version stay."""
    parameter = torch.nn.Parameter(torch.full((3,), 2.0, device=device.torch_device))
    result = parameter * 2
    versions = parameter._version, result._version
    with lazytrace.trace() as tracer:
        case_kernels.ignore[(1,)](parameter, result, 5)
        device.synchronize()
        args = tracer.records()[0].args
    assert (args["x"].values.max, args["y"].values.max) == (2.0, 4.0)
    assert (parameter._version, result._version) == versions
    result.sum().backward()
    assert parameter.grad.tolist() == [2.0] * 3
