"""torch.compile(fullgraph=True) of functions that synchronise, around enable and disable."""

from __future__ import annotations

import case_kernels
import pytest
import torch

import lazytrace

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own imports


def cuda_synchronise(x):
    y = x * 2
    torch.cuda.synchronize()
    return y + 1


def accelerator_synchronise(x):
    y = x * 2
    torch.accelerator.synchronize()
    return y + 1


FUNCTIONS = [cuda_synchronise, accelerator_synchronise]


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Each test compiles anew."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compilable(function, device):
    """The function compiled in full, or a skip where torch cannot even without a tracer."""
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    try:
        compiled(torch.ones(2, device=device.torch_device))
    except torch._dynamo.exc.Unsupported as error:
        pytest.skip(f"not compilable in full without a tracer: {str(error).splitlines()[0]}")
    return compiled


def assert_right(compiled, device, size):
    x = torch.ones(size, device=device.torch_device)
    assert compiled(x).tolist() == [3.0] * size


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_was_compiled_before_enable_still_runs(device, function):
    """Compiled before; called, and compiled anew for another size, while traced and afterwards."""
    compiled = compilable(function, device)
    with lazytrace.trace():
        assert_right(compiled, device, 2)
        assert_right(compiled, device, 5)
    assert_right(compiled, device, 2)
    assert_right(compiled, device, 7)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_compiled_while_traced_runs_on_without(device, function):
    """Compiled in full under the wrappers; called in a second trace and after it."""
    compilable(function, device)
    torch.compiler.reset()
    with lazytrace.trace() as tracer:
        compiled = torch.compile(function, fullgraph=True, backend="eager")
        assert_right(compiled, device, 2)
        assert tracer.problems() == []
    assert_right(compiled, device, 2)
    with lazytrace.trace():
        assert_right(compiled, device, 3)
    assert_right(compiled, device, 4)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_synchronisation_between_compiled_calls_is_a_flush_point(device, function):
    """Eager synchronisations keep their meaning beside compiled ones."""
    compiled = compilable(function, device)
    x = torch.ones(4, device=device.torch_device)
    with lazytrace.trace() as tracer:
        assert_right(compiled, device, 2)
        graph = case_kernels.captured(lambda: case_kernels.accumulate[(1,)](x, x, 4, BLOCK=4))
        graph.replay()
        device.synchronize()
        assert_right(compiled, device, 2)
        (record,) = tracer.records()
    assert record.args["x"].values.max == 2.0
    assert record.args["x"].observed.point == "after_replay"


def test_a_compiled_function_that_launches_is_right(device):
    """A graph break at a launch: the launch is recorded, the result right."""
    x = torch.ones(4, device=device.torch_device)

    @torch._dynamo.disable
    def launch(tensor):
        case_kernels.accumulate[(1,)](tensor, tensor, 4, BLOCK=4)

    def function(tensor):
        doubled = tensor * 2
        launch(doubled)
        return doubled + 1

    with lazytrace.trace() as tracer:
        result = torch.compile(function, backend="eager")(x)
        device.synchronize()
        (record,) = tracer.records()
    assert result.tolist() == [5.0] * 4
    assert record.kernel.name == "accumulate"
