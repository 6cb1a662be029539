"""Flushes on a GPU: beside captures of every kind, without torch's allocator, on busy streams."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager

import case_kernels
import kernels
import pytest
import torch
from conftest import needs_gpu

import lazytrace

pytestmark = [pytest.mark.gpu, needs_gpu]

SECOND_CYCLES = 1_500_000_000
CAPTURES = 84  # in each of twelve ways: a thousand in all


def scale(x, factor=2.0):
    kernels.scale_[(1,)](x, x.numel(), factor, BLOCK=16)


# Memory


def test_a_flush_does_not_touch_torchs_allocator():
    """memory_stats is the same before and after, once the workspace is there."""
    x = torch.ones(16, device="cuda")
    large = torch.ones(1 << 22, device="cuda")
    with lazytrace.trace(eager_samples=None, flush_at="exit") as tracer:
        scale(x)
        tracer.flush(wait=True)
        graph = case_kernels.captured(lambda: scale(x))
        case_kernels.ignore[(1,)](large, large[1:], 5)
        graph.replay()
        torch.cuda.synchronize()
        gc.collect()  # no graph of an earlier test may die in between
        before = torch.cuda.memory_stats()
        result = tracer.flush(wait=True)
        after = torch.cuda.memory_stats()
        records = tracer.records()
    assert after == before
    assert (result.completed, result.still_due) == (2, 0)
    assert records[-1].args["x"].values.mean == 1.0
    assert records[-1].args["x"].numel == 1 << 22


def test_host_memory_is_never_read():
    """Pinned memory that a kernel can address is described and skipped."""
    pinned = torch.ones(16).pin_memory()
    x = torch.ones(16, device="cuda")
    with lazytrace.trace() as tracer:
        case_kernels.ignore[(1,)](pinned, x, 5)
        torch.cuda.synchronize()
        args = tracer.records()[0].args
    assert (args["x"].state, args["x"].reason) == ("skipped", "host_memory")
    assert (args["x"].device, args["x"].shape) == ("cpu", (16,))
    assert args["y"].values.max == 1.0


def test_memory_of_the_graphs_pool_is_told_from_external_memory():
    """A temporary of the capture lies in the graph's pool, the input does not."""
    x = torch.ones(16, device="cuda")
    kept = []
    with lazytrace.trace() as tracer:

        def body():
            temporary = x * 3
            kept.append(temporary)
            case_kernels.ignore[(1,)](x, temporary, 5)

        graph = case_kernels.captured(body)
        graph.replay()
        torch.cuda.synchronize()
        args = tracer.records()[0].args
    assert (args["x"].pool, args["y"].pool) == ("external", "graph")
    assert args["y"].values.max == 3.0


# Streams


def test_a_flush_waits_for_nothing_unless_asked():
    """A launch behind a second of work stays due; flush(wait=True) reads it."""
    x, y = torch.ones(16, device="cuda"), torch.ones(16, device="cuda")
    scale(x)
    torch.cuda.synchronize()
    busy = torch.cuda.Stream()
    with lazytrace.trace(eager_samples=None) as tracer:
        scale(y)
        torch.cuda.synchronize()
        with torch.cuda.stream(busy):
            torch.cuda._sleep(SECOND_CYCLES)
            scale(x)
        scale(y, 3.0)
        torch.cuda.current_stream().synchronize()
        result = tracer.flush()
        assert not busy.query()
        states = [record.state.value for record in tracer.records()]
        assert (result.still_due, result.reason) == (1, "streams are busy")
        assert states == ["complete", "pending", "complete"]
        waited = tracer.flush(wait=True)
        assert (waited.completed, waited.still_due) == (1, 0)
        assert tracer.records()[1].args["x"].values.max == 4.0


def test_streams_forked_and_joined_in_a_capture_keep_their_values_apart():
    """C8: two streams of one capture, replayed many times: each launch has its own arguments."""
    x, y = torch.ones(16, device="cuda"), torch.ones(16, device="cuda")
    scale(x, 1.0)
    with lazytrace.trace() as tracer:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            main, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(main)
            scale(x, 2.0)
            with torch.cuda.stream(side):
                scale(y, 3.0)
            main.wait_stream(side)
        for _ in range(4):
            graph.replay()
        torch.cuda.synchronize()
        first, second = tracer.records()
    assert (first.args["x"].data_ptr, second.args["x"].data_ptr) == (x.data_ptr(), y.data_ptr())
    assert (first.args["x"].values.max, second.args["x"].values.max) == (16.0, 81.0)
    assert first.capture.graph == second.capture.graph
    assert [first.capture.index, second.capture.index] == [0, 1]
    assert first.stream != second.stream
    assert (first.replays, second.replays) == (4, 4)


def test_launches_of_several_streams_are_read_with_their_own_values():
    """Eight streams, a device synchronisation: all are read."""
    tensors = [torch.full((16,), float(index + 1), device="cuda") for index in range(8)]
    torch.cuda.synchronize()
    with lazytrace.trace(eager_samples=None) as tracer:
        for tensor in tensors:
            with torch.cuda.stream(torch.cuda.Stream()):
                scale(tensor)
        torch.cuda.synchronize()
        records = tracer.records()
    assert [record.args["x"].values.max for record in records] == [
        2.0 * (index + 1) for index in range(8)
    ]
    assert len({record.stream for record in records}) == 8


# Captures of every kind beside a flushing thread


def checked(result):
    """The value of a cuda.bindings call that must succeed."""
    error, *values = result
    assert int(error) == 0, error
    return values[0] if values else None


class TorchCaptures:
    """Captures and replays through torch.cuda.graph."""

    def __init__(self, mode):
        self.mode, self.stream = mode, torch.cuda.Stream()

    def once(self, body):
        graph = case_kernels.captured(body, stream=self.stream, capture_error_mode=self.mode)
        graph.replay()
        torch.cuda.current_stream().synchronize()

    def close(self):
        pass


class RawTorchCaptures(TorchCaptures):
    """Captures and replays through torch._C._CUDAGraph, which nothing of ours wraps."""

    def once(self, body):
        graph = torch._C._CUDAGraph()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=None, capture_error_mode=self.mode)
            body()
            graph.capture_end()
            graph.replay()
        self.stream.synchronize()


class BindingsCaptures:
    """Captures and replays through the CUDA runtime, on a stream of its own."""

    flags = 1  # cudaStreamNonBlocking

    def __init__(self, mode):
        self.cuda = pytest.importorskip("cuda.bindings.runtime")
        modes = self.cuda.cudaStreamCaptureMode
        self.mode = {
            "global": modes.cudaStreamCaptureModeGlobal,
            "thread_local": modes.cudaStreamCaptureModeThreadLocal,
            "relaxed": modes.cudaStreamCaptureModeRelaxed,
        }[mode]
        self.stream = checked(self.cuda.cudaStreamCreateWithFlags(self.flags))

    def once(self, body):
        cuda, stream = self.cuda, self.stream
        with torch.cuda.stream(torch.cuda.ExternalStream(int(stream))):
            checked(cuda.cudaStreamBeginCapture(stream, self.mode))
            try:
                body()
            finally:
                graph = checked(cuda.cudaStreamEndCapture(stream))
        executable = checked(cuda.cudaGraphInstantiate(graph, 0))
        checked(cuda.cudaGraphLaunch(executable, stream))
        checked(cuda.cudaStreamSynchronize(stream))
        checked(cuda.cudaGraphExecDestroy(executable))
        checked(cuda.cudaGraphDestroy(graph))

    def close(self):
        checked(self.cuda.cudaStreamDestroy(self.stream))


class BlockingBindingsCaptures(BindingsCaptures):
    """The same on a stream that waits for the legacy default stream."""

    flags = 0  # cudaStreamDefault


@contextmanager
def flushing(tracer):
    """A thread that launches, and flushes with and without waiting, all the time.

    On a stream that no other thread uses: of high priority, for torch hands the 32 streams of each
    priority out in turn.
    """
    stop, faults, flushes = threading.Event(), [], []
    stream = torch.cuda.Stream(priority=-1)
    x = torch.ones(16, device="cuda")
    torch.cuda.synchronize()

    def loop():
        try:
            with torch.cuda.stream(stream):
                while not stop.is_set():
                    scale(x, 1.0)
                    flushes.append(tracer.flush(wait=len(flushes) % 2 == 0).completed)
        except Exception as error:  # noqa: BLE001 - raised again in the test's thread
            faults.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield flushes
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    if faults:
        raise faults[0]


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize(
    "api",
    [TorchCaptures, RawTorchCaptures, BindingsCaptures, BlockingBindingsCaptures],
    ids=["torch", "torch._C", "bindings", "bindings, blocking stream"],
)
def test_no_capture_is_broken_by_flushes_of_another_thread(api, mode):
    """84 captures, each replayed, with right results, while another thread flushes in a loop."""
    y = torch.zeros(16, device="cuda")
    one = torch.ones(16, device="cuda")
    scale(one, 1.0)
    case_kernels.accumulate[(1,)](one, y, 16, BLOCK=16)
    y.zero_()
    torch.cuda.synchronize()

    def body():
        for _ in range(20):
            case_kernels.accumulate[(1,)](one, y, 16, BLOCK=16)

    with lazytrace.trace(eager_samples=None) as tracer:
        captures = api(mode)
        with flushing(tracer) as flushes:
            for _ in range(CAPTURES):
                captures.once(body)
        torch.cuda.synchronize()
        captures.close()
        captured = tracer.records("accumulate", captured=True)
        problems = {problem.kind.value for problem in tracer.problems()}
    assert y.tolist() == [20.0 * CAPTURES] * 16
    assert sum(flushes) > 0, "no flush read anything: the test shows nothing"
    assert sum(record.count for record in captured) == 20 * CAPTURES
    assert "capture_failed" not in problems
    assert "tracer_error" not in problems
    if api is TorchCaptures:
        assert {record.state.value for record in captured} == {"complete"}
        assert {record.args["x"].values.max for record in captured} == {1.0}


def test_a_flush_in_the_middle_of_another_threads_capture_is_right():
    """While a global capture is held open, a flush of another thread reads, and breaks nothing."""
    x, y = torch.ones(16, device="cuda"), torch.full((16,), 5.0, device="cuda")
    scale(x, 1.0)
    torch.cuda.synchronize()
    results = []
    with lazytrace.trace(eager_samples=None, flush_at="exit") as tracer:
        case_kernels.ignore[(1,)](y, y, 5)
        torch.cuda.synchronize()

        def body():
            scale(x, 2.0)
            thread = threading.Thread(target=lambda: results.append(tracer.flush(wait=True)))
            thread.start()
            thread.join(60)
            scale(x, 2.0)

        graph = case_kernels.captured(body)
        graph.replay()
        torch.cuda.synchronize()
        first, *others = tracer.records()
    assert [(result.completed, result.still_due) for result in results] == [(1, 0)]
    assert first.args["x"].values.max == 5.0
    assert sum(record.count for record in others) == 2
    assert x.tolist() == [4.0] * 16
