"""Nothing lives longer because it is traced, and a flush can be interrupted by anything."""

from __future__ import annotations

import gc
import signal
import weakref

import case_kernels
import kernels
import pytest
import torch
import triton

import lazytrace


def ones(device, size=4):
    return torch.ones(size, device=device.torch_device)


def dead(reference):
    gc.collect()
    return reference() is None


# What the user drops


@pytest.mark.parametrize("when", ["pending", "due", "read"])
def test_a_tensor_and_its_storage_die_when_the_user_drops_them(device, when):
    """Between launch, replay and flush, and afterwards, nothing of ours holds them."""
    x = ones(device)
    tensor, storage = weakref.ref(x), weakref.ref(x.untyped_storage())
    with lazytrace.trace(flush_at="exit") as tracer:
        case_kernels.ignore[(1,)](x, x, 5)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            case_kernels.ignore[(1,)](x, x, 6)
        if when != "pending":
            graph.replay()
            device.synchronize()
        if when == "read":
            tracer.flush(wait=True)
            tracer.records()
        del x
        assert dead(tensor)
        assert dead(storage)
        states = [record.args["x"].state for record in tracer.records()]
    expected = {
        "pending": ["expired", "pending"],
        "due": ["expired", "expired"],
        "read": ["materialized", "materialized"],
    }[when]
    assert states == expected


@pytest.mark.core
def test_tensors_inside_tuples_and_descriptors_die_too(device):
    """The containers as well as what they hold."""
    x = torch.ones(16, 16, device=device.torch_device)
    descriptor = triton.tools.tensor_descriptor.TensorDescriptor.from_tensor(x, [16, 16])
    storage, held = weakref.ref(x.untyped_storage()), weakref.ref(descriptor)
    with lazytrace.trace() as tracer:
        case_kernels.ignore[(1,)]((x, (x,)), descriptor, 5)
        del x, descriptor
        assert dead(held)
        assert dead(storage)
        assert [record.state for record in tracer.records()] == ["complete"]


def test_an_object_argument_dies_when_the_user_drops_it(simulated):
    """A constant of a class of the user's is described, not kept."""

    class Constant:
        pass

    x, constant = ones(simulated), Constant()
    compiled = case_kernels.ignore_constexpr.warmup(x, 5, grid=(1,))
    reference = weakref.ref(constant)
    with lazytrace.trace():
        compiled[(1, 1, 1)](x, constant)
        del constant
        assert dead(reference)


@pytest.mark.core
def test_a_graph_dies_when_the_user_drops_it(device):
    """After captures, replays, flushes and a name."""
    x = ones(device)
    with lazytrace.trace() as tracer:
        graph = case_kernels.captured(lambda: case_kernels.ignore[(1,)](x, x, 5))
        tracer.name_graph(graph, "graph")
        graph.replay()
        device.synchronize()
        tracer.records()
        reference = weakref.ref(graph)
        del graph
        assert dead(reference)
        assert tracer.records()[0].capture.name == "graph"


@pytest.mark.core
def test_a_kernel_dies_when_the_user_drops_it(device):
    """A compiled kernel is held during its captures only."""
    x = ones(device)
    kernel = triton.jit(kernels.scale_.fn)
    compiled = weakref.ref(kernel.warmup(x, 4, 2.0, BLOCK=4, grid=(1,)))
    with lazytrace.trace() as tracer:
        kernel[(1,)](x, 4, 2.0, BLOCK=4)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel[(1,)](x, 4, 2.0, BLOCK=4)
        graph.replay()
        device.synchronize()
        tracer.records()
        del kernel
        getattr(triton.runtime.jit, "_triton_jit_function_registry", {}).clear()
        assert dead(compiled)
        assert len(tracer.records()) == 2


@pytest.mark.core
def test_a_reset_graph_can_be_captured_again_and_again(device):
    """Each capture is an epoch of its own, and what was read of the last one stays."""
    x, graph = ones(device), torch.cuda.CUDAGraph()
    with lazytrace.trace() as tracer:
        for _ in range(3):
            with torch.cuda.graph(graph):
                kernels.scale_[(1,)](x, 4, 2.0, BLOCK=4)
            graph.replay()
            device.synchronize()
            graph.reset()
        shown = [(r.capture.epoch, r.args["x"].values.max) for r in tracer.records()]
    assert shown == [(0, 2.0), (1, 4.0), (2, 8.0)]


def test_a_tracer_that_was_disabled_holds_nothing(device):
    """Records stay readable after the tensors, the graph and the tracer's parts are gone."""
    x = ones(device)
    storage = weakref.ref(x.untyped_storage())
    with lazytrace.trace() as tracer:
        case_kernels.ignore[(1,)](x, x, 5)
    del x
    assert dead(storage)
    assert tracer.records()[0].args["x"].values.max == 1.0


# swap_tensors


def test_swap_tensors_works_while_traced(device):
    """torch.utils.swap_tensors raises for tensors with weak references: we keep none."""
    x, y = ones(device), torch.full((8,), 7.0, device=device.torch_device)
    with lazytrace.trace(eager_samples=None) as tracer:
        case_kernels.ignore[(1,)](x, y, 5)
        graph = case_kernels.captured(lambda: case_kernels.ignore[(1,)](x, y, 6))
        graph.replay()
        torch.utils.swap_tensors(x, y)
        case_kernels.ignore[(1,)](x, y, 5)
        device.synchronize()
        shown = [
            (r.args["x"].shape, r.args["x"].values.max, r.args["y"].values.max)
            for r in tracer.records()
        ]
    assert shown == [((4,), 1.0, 7.0), ((4,), 1.0, 7.0), ((8,), 7.0, 1.0)]


def test_a_module_moved_to_another_dtype_is_followed(device):
    """``param.data = new`` swaps the storage under a living Parameter."""
    parameter = torch.nn.Parameter(ones(device))
    with lazytrace.trace(eager_samples=None, flush_at="exit") as tracer:
        case_kernels.ignore[(1,)](parameter, None, 5)
        parameter.data = torch.full((4,), 9.0, device=device.torch_device)
        case_kernels.ignore[(1,)](parameter, None, 5)
        device.synchronize()
        first, second = (record.args["x"] for record in tracer.records())
    assert (first.state, first.reason) == ("expired", "storage_freed")
    assert second.values.max == 9.0


def test_a_storage_resized_to_nothing_is_expired(device):
    """``untyped_storage().resize_(0)``, as FSDP does it: the wrapper lives, the memory is gone."""
    x = ones(device)
    with lazytrace.trace(flush_at="exit") as tracer:
        case_kernels.ignore[(1,)](x, None, 5)
        device.synchronize()
        x.untyped_storage().resize_(0)
        argument = tracer.records()[0].args["x"]
    assert (argument.state, argument.values) == ("expired", None)


# Interruptions


def test_a_weak_reference_callback_that_synchronises_does_not_hang(device):
    """A tensor whose death synchronises, dying in the middle of a flush."""
    events = []

    def synchronise(_):
        events.append("died")
        torch.cuda.synchronize()
        events.append(lazytrace.flush().reason)
        lazytrace.records()

    class Holder:
        """A cycle: it dies when the collector runs, which a flush's allocations make it do."""

        def __init__(self):
            self.me = self

    thresholds = gc.get_threshold()
    x = ones(device)
    with lazytrace.trace(flush_at="exit", eager_samples=None) as tracer:
        for value in range(5, 60):
            case_kernels.ignore[(1,)](x, x, value)
        gc.collect()
        references = []
        for _ in range(3):
            holder = Holder()
            references.append(weakref.ref(holder, synchronise))
            del holder
        gc.set_threshold(1, 1, 1)
        try:
            result = tracer.flush(wait=True)
        finally:
            gc.set_threshold(*thresholds)
        gc.collect()
        states = {record.state.value for record in tracer.records()}
    assert events.count("died") == 3
    assert result.still_due == 0
    assert states == {"complete"}


@pytest.fixture
def every_few_ms():
    """Sets a signal handler that is called again a little after it returned."""
    previous = signal.getsignal(signal.SIGALRM)

    def start(call):
        def handler(number, frame):
            call()
            signal.setitimer(signal.ITIMER_REAL, 0.003)

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.003)

    def stop():
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)

    yield start, stop
    stop()
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.core
def test_a_signal_handler_that_synchronises_does_not_hang(device, every_few_ms):
    """A timer's handler that synchronises and asks, fired all through a flush loop."""
    handled = []
    start, stop = every_few_ms

    def ask():
        torch.cuda.synchronize()
        lazytrace.flush()
        handled.append(len(lazytrace.records()))

    x = ones(device)
    with lazytrace.trace(flush_at="exit", eager_samples=None) as tracer:
        case_kernels.ignore[(1,)](x, x, 4)
        ask()  # what torch imports late is there
        start(ask)
        for value in range(5, 105):
            case_kernels.ignore[(1,)](x, x, value)
            tracer.flush(wait=True)
        stop()
        records = tracer.records()
        assert tracer.problems() == []
    assert handled
    assert [record.args["value"].value for record in records] == list(range(4, 105))
    assert {record.state.value for record in records} == {"complete"}


def test_a_signal_handler_may_launch(device, every_few_ms):
    """A handler that launches in the middle of a flush or a launch: nothing is lost or torn."""
    x, y = ones(device), ones(device)
    launched = []
    start, stop = every_few_ms

    def launch():
        case_kernels.ignore_constexpr[(1,)](y, 5)
        launched.append(1)

    with lazytrace.trace(flush_at="exit") as tracer:
        launch()
        start(launch)
        for _ in range(200):
            case_kernels.ignore[(1,)](x, x, 5)
            tracer.flush()
        stop()
        singles = tracer.records(expand=True)
        assert tracer.problems() == []
    names = [record.kernel.name for record in singles]
    assert len(launched) > 1
    assert (names.count("ignore"), names.count("ignore_constexpr")) == (200, len(launched))
    assert [record.id for record in singles] == list(range(200 + len(launched)))
