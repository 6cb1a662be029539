"""The capture rules, row by row of the table measured on hardware."""

from __future__ import annotations

import threading

import kernels
import pytest
import torch
import triton

from lazytrace.testing import simulate

pytestmark = pytest.mark.core

PREVIOUS_ERROR = "CUDA error: operation failed due to a previous error during capture"
NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
MODES = ("global", "thread_local", "relaxed")


class Bench:
    """What the operations of the table work on, all made before the capture."""

    def __init__(self, simulation):
        self.simulation = simulation
        self.x, self.y, self.out = torch.randn(100), torch.ones(100), torch.zeros(100)
        self.side = torch.cuda.Stream()
        self.before, self.later = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.before.record(self.side)
        self.later.record(self.side)
        self.inside = torch.cuda.Event()
        self.pinned = torch.empty(100)
        self.other = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.other, stream=torch.cuda.Stream()):
            self.launch()

    def launch(self):
        kernels.axpy[(1,)](self.x, self.y, self.out, 100, 2.0, BLOCK=128)

    def capture(self, mode, operation):
        """Run an operation in a capture; returns its exception and capture_end's."""
        errors = []
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode=mode)
            self.inside.record()
            self.launch()
            for step in (lambda: operation(self), graph.capture_end):
                try:
                    step()
                except RuntimeError as error:
                    errors.append(error)
                else:
                    errors.append(None)
        return errors


@pytest.fixture(scope="module")
def bench():
    with simulate() as simulation:
        yield Bench(simulation)


def in_another_thread(operation):
    """The operation, run to its end by a second thread; its exception comes back."""

    def run(bench):
        raised = []

        def target():
            try:
                operation(bench)
            except RuntimeError as error:
                raised.append(error)

        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    return run


def relaxed(operation):
    """The operation in a thread that has put itself into relaxed mode, and puts it back."""

    def run(bench):
        previous = bench.simulation.exchange_capture_mode("relaxed")
        try:
            operation(bench)
        finally:
            assert bench.simulation.exchange_capture_mode(previous) == "relaxed"

    return run


def on_side(operation):
    """The operation with a stream current that is not capturing."""

    def run(bench):
        with torch.cuda.stream(bench.side):
            operation(bench)

    return run


def event_on_side_stream(bench):
    torch.cuda.Event().record(bench.side)


def destroy_graph(bench):
    graph = torch.cuda.CUDAGraph()
    del graph


def metadata(bench):
    x = bench.x
    x.shape, x.stride(), x.dtype, x.device, x.data_ptr(), x.storage_offset(), x.is_contiguous()


OPERATIONS = {
    "is capturing": lambda b: torch.cuda.is_current_stream_capturing(),
    "query event before": lambda b: b.before.query(),
    "synchronize event before": lambda b: b.before.synchronize(),
    "query event inside": lambda b: b.inside.query(),
    "synchronize event inside": lambda b: b.inside.synchronize(),
    "event on side stream": event_on_side_stream,
    "create streams": lambda b: torch.cuda.Stream(),
    "query side stream": lambda b: b.side.query(),
    "synchronize side stream": lambda b: b.side.synchronize(),
    "torch.cuda.synchronize": lambda b: torch.cuda.synchronize(),
    "torch.accelerator.synchronize": lambda b: torch.accelerator.synchronize(),
    "allocate on side stream": on_side(lambda b: torch.empty(10)),
    "empty cache": lambda b: torch.cuda.empty_cache(),
    "item on side stream": on_side(lambda b: b.x[0].item()),
    "tolist on side stream": on_side(lambda b: b.x.tolist()),
    "copy to pinned": on_side(lambda b: b.pinned.copy_(b.x, non_blocking=True)),
    "to host, not blocking": on_side(lambda b: b.x.to("cpu", non_blocking=True)),
    "allocate pinned": on_side(lambda b: b.x.pin_memory()),
    "launch on side stream": on_side(lambda b: b.launch()),
    "memory snapshot": lambda b: torch.cuda.memory_snapshot(),
    "replay on side stream": on_side(lambda b: b.other.replay()),
    "destroy graph": destroy_graph,
    "elapsed time": lambda b: b.before.elapsed_time(b.later),
    "metadata": metadata,
}
OK, NEVER = (True, True, True), (False, False, False)
UNSAFE_SELF, UNSAFE_OTHER = (False, False, True), (False, True, True)
UNSAFE = {
    "query event before", "synchronize event before", "query side stream",
    "synchronize side stream", "item on side stream", "tolist on side stream", "allocate pinned",
    "elapsed time",
}  # fmt: skip
ALWAYS_BROKEN = {
    "query event inside", "synchronize event inside", "torch.cuda.synchronize",
    "torch.accelerator.synchronize",
}  # fmt: skip


def rows():
    """(operation, who, mode, ok) for every cell of the table."""
    for name in OPERATIONS:
        for who in ("self", "other"):
            if name == "allocate on side stream":
                verdicts = UNSAFE_SELF
                if who == "other":  # torch shows the simulator one thread's operations only
                    continue
            elif name in ALWAYS_BROKEN:
                verdicts = NEVER
            elif name in UNSAFE:
                verdicts = UNSAFE_SELF if who == "self" else UNSAFE_OTHER
            else:
                verdicts = OK
            for mode, ok in zip(MODES, verdicts, strict=True):
                yield pytest.param(name, who, mode, ok, id=f"{name}-{who}-{mode}")


@pytest.mark.parametrize(("name", "who", "mode", "ok"), list(rows()))
def test_table(bench, name, who, mode, ok):
    """An operation passes and leaves the capture whole, or raises and breaks it."""
    operation = OPERATIONS[name]
    raised, ended = bench.capture(
        mode, operation if who == "self" else in_another_thread(operation)
    )
    if ok:
        assert (raised, ended) == (None, None)
    else:
        assert NOT_PERMITTED in str(raised)
        assert PREVIOUS_ERROR in str(ended)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_thread_in_relaxed_mode(bench, name, mode):
    """A second thread in relaxed mode breaks nothing, but for the two calls that always do."""
    raised, ended = bench.capture(mode, in_another_thread(relaxed(OPERATIONS[name])))
    if name in ALWAYS_BROKEN:
        assert NOT_PERMITTED in str(raised)
        assert PREVIOUS_ERROR in str(ended)
    else:
        assert (raised, ended) == (None, None)


HOST_READS = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x[0] > 1),
    "int": lambda x: int(x[0]),
    "float": lambda x: float(x[0]),
    "index": lambda x: [0][x.to(torch.int64)[0] * 0],
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "to device": lambda x: x.to(device=torch.device("cpu")),
    "repr": repr,
    "str": str,
    "format": lambda x: f"{x}",
    "nonzero": lambda x: x.nonzero(),
    "boolean mask": lambda x: x[x > 0],
    "assignment by mask": lambda x: x.index_put_((x > 9,), torch.ones(())),
    "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: x.unique(),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HOST_READS)
def test_host_reads_break_a_capture_in_every_mode(bench, name, mode):
    """What brings a value of the capturing stream to the host is never allowed."""
    raised, ended = bench.capture(mode, lambda b: HOST_READS[name](b.x))
    assert NOT_PERMITTED in str(raised)
    assert PREVIOUS_ERROR in str(ended)


def test_host_reads_under_disabled_torch_function(bench):
    """They are seen as well where torch functions are not."""

    def read(bench):
        with torch._C.DisableTorchFunctionSubclass():
            bench.x.tolist()

    raised, ended = bench.capture("global", read)
    assert NOT_PERMITTED in str(raised)
    assert PREVIOUS_ERROR in str(ended)


@pytest.mark.parametrize("call", ["query", "synchronize"])
def test_the_capturing_stream_itself(bench, call):
    """A query of the capturing stream breaks the capture even in relaxed mode."""
    raised, ended = bench.capture("relaxed", lambda b: getattr(torch.cuda.current_stream(), call)())
    assert NOT_PERMITTED in str(raised)
    assert PREVIOUS_ERROR in str(ended)


def test_first_launch_may_happen_in_a_capture(bench):
    """Compiling and loading a kernel inside a capture is fine."""

    @triton.jit
    def fresh(x):
        triton.language.store(x, 7.0)

    assert bench.capture("global", lambda b: fresh[(1,)](b.out)) == [None, None]


def test_module_unload_invalidates_without_raising(bench):
    """A module unloaded inside a capture breaks it at its end only."""
    raised, ended = bench.capture("global", lambda b: b.simulation.driver.utils.unload_module(1))
    assert raised is None
    assert "cuModuleUnload" in str(ended)


def test_compiled_kernel_that_dies_in_a_capture(bench):
    """Triton unloads a dying kernel's module from 3.8 on, which breaks the capture."""
    held = [kernels.scale_[(1,)](bench.y, 100, 1.0, BLOCK=128)]
    kernels.scale_.device_caches.clear()
    raised, ended = bench.capture("global", lambda b: held.clear())
    assert raised is None
    unloads = hasattr(triton.compiler.CompiledKernel, "__del__")
    assert (ended is not None) == unloads


def test_launch_into_an_invalidated_capture(bench):
    """After the capture broke, a launch on its stream raises too."""

    def launch(bench):
        with pytest.raises(RuntimeError, match=NOT_PERMITTED):
            torch.cuda.synchronize()
        bench.launch()

    raised, ended = bench.capture("global", launch)
    assert PREVIOUS_ERROR in str(raised)
    assert PREVIOUS_ERROR in str(ended)


def test_one_synchronize_breaks_every_capture(bench):
    """A device-wide wait invalidates all captures in progress, those of other streams too."""
    outer, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        outer.capture_begin(capture_error_mode="relaxed")
        raised, ended = bench.capture("relaxed", lambda b: torch.cuda.synchronize())
        assert NOT_PERMITTED in str(raised)
        assert PREVIOUS_ERROR in str(ended)
        with pytest.raises(RuntimeError, match=PREVIOUS_ERROR):
            outer.capture_end()


def test_rules_end_with_the_capture(bench):
    """After a broken capture everything is allowed again."""
    bench.capture("global", lambda b: torch.cuda.synchronize())
    torch.cuda.synchronize()
    assert bench.before.query()
    assert len(repr(bench.x)) > 0
    assert bench.capture("global", metadata) == [None, None]
