"""The public simulator: Triton's benchmarks and hooks over it, and nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import weakref

import kernels
import pytest
import torch
import triton
import triton.language as tl
from triton.compiler import compiler
from triton.testing import do_bench, do_bench_cudagraph

import lazytrace.testing
from lazytrace.errors import LazytraceError
from lazytrace.testing import simulate

pytestmark = pytest.mark.core

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
PREVIOUS_ERROR = "CUDA error: operation failed due to a previous error during capture"
N = 100


class Inputs:
    """Three vectors and the axpy over them."""

    def __init__(self):
        self.x, self.y, self.out = torch.randn(N), torch.ones(N), torch.zeros(N)

    def launch(self):
        kernels.axpy[(1,)](self.x, self.y, self.out, N, 2.0, BLOCK=128)

    def expected(self):
        return 2.0 * self.x + self.y


@pytest.fixture
def inputs():
    return Inputs()


@pytest.fixture
def simulation():
    with simulate() as running:
        yield running


@pytest.fixture
def enter_hook():
    """Sets Triton's launch enter hook, a plain slot on 3.4 and a chain from 3.5 on."""
    runtime = triton.knobs.runtime
    before = runtime.launch_enter_hook
    yield lambda hook: setattr(runtime, "launch_enter_hook", hook)
    runtime.launch_enter_hook = before


@pytest.fixture
def tensors_of_launch(monkeypatch):
    """What a naive tracer does to get at the arguments: src.fn.launch_metadata."""
    monkeypatch.setattr(
        kernels.axpy, "launch_metadata", lambda grid, metadata, args: {"args": args}
    )

    def tensors(launch_metadata):
        args = launch_metadata.get()["args"].values()
        return [value for value in args if isinstance(value, torch.Tensor)]

    return tensors


def messages(error):
    """The messages of an exception and of what it came from."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def everything():
    """Every attribute that a simulation touches, by identity."""
    language = {value for value in vars(tl.core).values() if isinstance(value, type)}
    owners = [
        torch.cuda, torch.cuda.graphs, torch.cuda.memory, torch.cuda.graph, torch._C,
        torch.accelerator, torch.Tensor, compiler.CompiledKernel, compiler.ASTSource,
        triton.knobs, triton.runtime.driver, triton.runtime.interpreter,
        triton.runtime.interpreter.InterpreterBuilder, triton.runtime.JITFunction,
        tl, tl.core, tl.math, *language,
    ]  # fmt: skip
    return [(owner, {name: id(value) for name, value in vars(owner).items()}) for owner in owners]


def test_do_bench_cudagraph_runs_unmodified(simulation, inputs):
    """One warm-up, five timed and twenty captured launches of one virtual millisecond each."""
    assert do_bench_cudagraph(inputs.launch, rep=20) == 1.0
    assert simulation.launches == 26
    assert simulation.clock_ms == 6 + 10 * 20
    assert torch.equal(inputs.out, inputs.expected())


def test_do_bench_runs_unmodified(simulation, inputs):
    """The ordinary benchmark reports the virtual time of one kernel."""
    assert do_bench(inputs.launch, warmup=2, rep=4) == 1.0
    assert torch.equal(inputs.out, inputs.expected())


def test_wall_clock(inputs):
    """Without a virtual clock events carry the host's time."""
    with simulate(kernel_ms=None) as simulation:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        inputs.launch()
        end.record()
        assert 0 < start.elapsed_time(end) < 60_000
        assert simulation.clock_ms == 0


def test_light_launches_compute_nothing(inputs):
    """With execute=False a graph has its nodes and the clock its time, and no value changes."""
    with simulate(execute=False) as simulation:
        assert do_bench_cudagraph(inputs.launch, rep=20) == 1.0
        assert simulation.launches == 26
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            inputs.launch()
        graph.replay()
        assert simulation.node_names(graph) == ["axpy"]
    assert torch.equal(inputs.out, torch.zeros(N))


def test_empty_grid_calls_hooks_and_runs_nothing(simulation, inputs, enter_hook):
    """A grid with a zero is no launch, but the hooks hear of it."""
    calls = []
    enter_hook(calls.append)
    kernels.axpy[(0,)](inputs.x, inputs.y, inputs.out, N, 2.0, BLOCK=128)
    assert len(calls) == 1
    assert simulation.launches == 0
    assert torch.equal(inputs.out, torch.zeros(N))


@pytest.mark.parametrize("strict", [True, False])
def test_naive_tracer_breaks_the_capture(simulation, inputs, enter_hook, tensors_of_launch, strict):
    """A hook that prints its tensors fails in do_bench_cudagraph with CUDA's own messages."""
    simulation.strict_hooks = strict
    enter_hook(lambda metadata: [str(tensor) for tensor in tensors_of_launch(metadata)])
    with pytest.raises(RuntimeError) as failure:
        do_bench_cudagraph(inputs.launch, rep=20)
    assert PREVIOUS_ERROR in str(failure.value)
    assert any(NOT_PERMITTED in message for message in messages(failure.value))


def test_reducing_hook_adds_nodes_under_cuda_rule(
    simulation, inputs, enter_hook, tensors_of_launch
):
    """CUDA lets a hook call min(), at the price of nodes in the user's graph."""
    simulation.strict_hooks = False
    enter_hook(lambda metadata: [tensor.min() for tensor in tensors_of_launch(metadata)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inputs.launch()
    assert simulation.node_names(graph) == ["aten.min.default"] * 3 + ["axpy"]
    assert simulation.nodes(graph) == 4


def test_reducing_hook_is_refused_under_strict_rule(
    simulation, inputs, enter_hook, tensors_of_launch
):
    """By default a hook of a capture may dispatch nothing; outside a capture it may."""
    enter_hook(lambda metadata: [tensor.min() for tensor in tensors_of_launch(metadata)])
    inputs.launch()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match=PREVIOUS_ERROR), torch.cuda.graph(graph):
        inputs.launch()


def test_describing_hook_is_allowed(simulation, inputs, enter_hook, tensors_of_launch):
    """Metadata and weak references dispatch nothing and add no node."""
    seen = []

    def describe(metadata):
        for tensor in tensors_of_launch(metadata):
            seen.append((tuple(tensor.shape), tensor.stride(), tensor.data_ptr()))
            weakref.ref(tensor.untyped_storage())

    enter_hook(describe)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inputs.launch()
    assert simulation.nodes(graph) == 1
    assert [entry[0] for entry in seen] == [(N,)] * 3


def test_strict_region_names_what_was_dispatched(simulation, inputs):
    """A launch passes a strict region; a torch operation does not, even if swallowed."""
    with simulation.strict():
        inputs.launch()

    def swallowed_operation():
        with simulation.strict(), contextlib.suppress(AssertionError):
            inputs.x.min()

    with pytest.raises(AssertionError, match=r"aten\.min\.default"):
        swallowed_operation()


def test_strict_region_breaks_a_capture(simulation, inputs):
    """An operation in a strict region of a capture invalidates it."""

    def capture():
        with torch.cuda.graph(torch.cuda.CUDAGraph()), simulation.strict():
            inputs.launch()
            inputs.x.clone()

    with pytest.raises(RuntimeError, match=PREVIOUS_ERROR):
        capture()


def test_everything_is_restored(inputs):
    """Every patched attribute is the original object afterwards."""
    with simulate():
        inputs.launch()
    before = everything()
    with simulate():
        do_bench_cudagraph(inputs.launch, rep=2)
    assert everything() == before


def test_everything_is_restored_after_an_exception_in_a_capture(inputs):
    """Also if the block is left in the middle of a capture."""
    with simulate():
        inputs.launch()
    before = everything()

    def leave_in_a_capture():
        with simulate(), torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.CUDAGraph().capture_begin()
            inputs.launch()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        leave_in_a_capture()
    assert everything() == before
    assert torch.equal(inputs.x.add(1), inputs.x + 1)


def test_compiled_kernels_do_not_outlive_the_simulation(inputs):
    """Triton's caches are as before, and a kernel that the user keeps is unloaded."""
    with simulate():
        kept = kernels.axpy[(1,)](inputs.x, inputs.y, inputs.out, N, 2.0, BLOCK=128)
        assert kept.module is not None
        dropped = weakref.ref(kernels.copy[(1,)](inputs.x, inputs.out, N, BLOCK=128))
        assert dropped() is not None
    gc.collect()
    assert dropped() is None
    assert kept.module is None
    assert not kernels.axpy.device_caches


def test_on_exit_runs_last_first_and_before_restoration():
    """Callbacks find the simulation in place, the last registered first."""
    order = []
    with simulate() as simulation:
        simulation.on_exit(lambda: order.append(("first", torch.cuda.current_device())))
        simulation.on_exit(lambda: order.append(("second", torch.cuda.current_device())))
    assert order == [("second", 0), ("first", 0)]


def test_failing_callback_does_not_prevent_restoration():
    """What a callback raises comes out, after everything was given back."""
    stream_class = torch.cuda.Stream

    def fail():
        raise KeyError("callback")

    with pytest.raises(KeyError, match="callback"), simulate() as simulation:
        simulation.on_exit(fail)
    assert torch.cuda.Stream is stream_class


def test_nesting_is_an_error(simulation):
    """A second simulation inside the first says so, and the first goes on."""
    with pytest.raises(LazytraceError, match="cannot be nested"), simulate():
        pass
    assert torch.cuda.current_stream().cuda_stream == 0


def test_imports_nothing_and_names_what_is_missing():
    """The module loads neither torch nor triton; without NumPy the error says what to install."""
    script = """
import sys
import lazytrace.testing
assert not {"torch", "triton", "numpy"} & set(sys.modules)
sys.modules["numpy"] = None
try:
    with lazytrace.testing.simulate():
        pass
except lazytrace.errors.MissingDependencyError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert 'pip install "lazytrace[sim]"' in done.stdout


def test_public_names():
    """The module exports simulate and nothing else."""
    assert lazytrace.testing.__all__ == ["simulate"]


def test_runtime_seam_is_announced_by_the_driver(simulation):
    """The active driver is the simulation's and carries lazytrace's access to the device."""
    driver = triton.runtime.driver.active
    assert driver is simulation.driver
    assert driver.lazytrace_runtime is not None


def test_device_identity(simulation):
    """The device is one sm_90 named after the simulator, and tensors stay on the CPU."""
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert "simulated" in torch.cuda.get_device_name()
    assert triton.runtime.driver.active.get_current_target().arch == 90


def test_own_kernels_do_not_advance_the_clock(simulation, inputs, monkeypatch):
    """Only the user's kernels take virtual time; lazytrace's private ones do not."""
    inputs.launch()
    assert simulation.clock_ms == 1.0
    monkeypatch.setattr(kernels.scale_.fn, "__module__", "lazytrace._statistics.kernels")
    kernels.scale_[(1,)](inputs.x, N, 2.0, BLOCK=128)
    assert simulation.clock_ms == 1.0
    assert simulation.launches == 2


def test_a_busy_stream_says_so(simulation):
    """busy() makes queries answer no, until a synchronise waits for the stream."""
    stream = torch.cuda.Stream()
    assert stream.query()
    with simulation.busy(stream):
        assert not stream.query()
        assert not simulation.stream_idle(stream.cuda_stream)
        torch.cuda.synchronize()
        assert stream.query()
    assert simulation.stream_idle(stream.cuda_stream)
