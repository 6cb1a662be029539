"""Streams in captures: who is capturing, how a side stream joins, and what must be rejoined."""

from __future__ import annotations

import threading

import kernels
import pytest
import torch
import triton

from lazytrace.testing import simulate

pytestmark = pytest.mark.core


@pytest.fixture
def simulation():
    with simulate() as running:
        yield running


@pytest.fixture
def x(simulation):
    """Four ones, made before any capture."""
    return torch.ones(4)


@pytest.fixture
def capture(x):
    """A capture in progress on a stream of its own: (graph, stream)."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        yield graph, stream


def scale(x, factor=2.0):
    kernels.scale_[(1,)](x, x.numel(), factor, BLOCK=128)


def is_capturing(stream):
    return triton.runtime.driver.active.utils.is_stream_capturing(stream.cuda_stream)


def test_capturing_is_a_matter_of_the_current_stream(simulation, capture):
    """The capturing stream says yes, any other stream and any other thread no."""
    graph, stream = capture
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.cuda.is_current_stream_capturing()))
    thread.start()
    thread.join()
    with torch.cuda.stream(torch.cuda.Stream()):
        seen.append(torch.cuda.is_current_stream_capturing())
    seen.append(torch.cuda.is_current_stream_capturing())
    assert seen == [False, False, True]
    assert is_capturing(stream)
    assert simulation.stream_capturing(stream.cuda_stream)
    assert not simulation.stream_idle(stream.cuda_stream)
    graph.capture_end()
    assert not is_capturing(stream)
    assert simulation.stream_idle(stream.cuda_stream)


def test_launch_of_another_thread_onto_the_capturing_stream_is_recorded(simulation, x, capture):
    """Capturing belongs to the stream: who launches onto it does not matter."""
    graph, stream = capture

    def launch():
        with torch.cuda.stream(stream):
            scale(x)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    graph.capture_end()
    assert simulation.node_names(graph) == ["scale_"]
    assert x.tolist() == [1.0] * 4


def test_launch_of_a_compiled_kernel_names_its_stream(simulation, x, capture):
    """``compiled[grid](..., stream=s)`` goes to s, capturing or not."""
    graph, stream = capture
    with torch.cuda.stream(torch.cuda.Stream()):
        compiled = kernels.scale_[(1,)](x, 4, 2.0, BLOCK=128)
        compiled[(1, 1, 1)](x, 4, 2.0, 128, stream=stream.cuda_stream)
    graph.capture_end()
    assert simulation.nodes(graph) == 1
    assert x.tolist() == [2.0] * 4


def test_side_stream_joins_and_rejoins(simulation, x, capture):
    """A stream that waits for the capture is captured, under the same id, until the end."""
    graph, stream = capture
    side = torch.cuda.Stream()
    assert simulation.capture_id(side.cuda_stream) is None
    scale(x)
    side.wait_stream(stream)
    assert is_capturing(side)
    assert simulation.capture_id(side.cuda_stream) == simulation.capture_id(stream.cuda_stream)
    with torch.cuda.stream(side):
        assert torch.cuda.is_current_stream_capturing()
        scale(x, 3.0)
    stream.wait_stream(side)
    graph.capture_end()
    assert not is_capturing(side)
    graph.replay()
    assert x.tolist() == [6.0] * 4


def test_unjoined_work_fails_the_capture(simulation, x, capture):
    """Work of a side stream that the capture does not wait for is an error at its end."""
    graph, stream = capture
    side = torch.cuda.Stream()
    side.wait_stream(stream)
    with torch.cuda.stream(side):
        scale(x)
    with pytest.raises(RuntimeError, match="unjoined work"):
        graph.capture_end()
    assert not is_capturing(side)


def test_join_through_a_third_stream(simulation, x, capture):
    """It is enough that the capture waits for a stream that waits for the side stream."""
    graph, stream = capture
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    first.wait_stream(stream)
    with torch.cuda.stream(first):
        scale(x)
    second.wait_stream(first)
    stream.wait_stream(second)
    graph.capture_end()
    assert simulation.nodes(graph) == 1


def test_waiting_for_uncaptured_work_breaks_the_capture(simulation, capture):
    """A capture cannot depend on work that it does not contain."""
    graph, stream = capture
    with pytest.raises(RuntimeError, match="dependency created on uncaptured work"):
        stream.wait_stream(torch.cuda.Stream())
    with pytest.raises(RuntimeError, match="previous error during capture"):
        graph.capture_end()


def test_an_event_never_recorded_is_no_dependency(simulation, capture):
    """Waiting for it is fine, as CUDA takes it for one that has happened."""
    graph, stream = capture
    stream.wait_event(torch.cuda.Event())
    graph.capture_end()


def test_captures_do_not_merge(simulation, capture):
    """A wait between two captures breaks both."""
    graph, _ = capture
    event = torch.cuda.Event()
    event.record()
    other = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        other.capture_begin()
        with pytest.raises(RuntimeError, match="merge of separate capture sequences"):
            event.wait()
        with pytest.raises(RuntimeError, match="previous error during capture"):
            other.capture_end()
    with pytest.raises(RuntimeError, match="previous error during capture"):
        graph.capture_end()


def test_event_of_an_ended_capture_cannot_be_queried(simulation, capture):
    """An event last recorded in a capture stays without a time."""
    graph, _ = capture
    event = torch.cuda.Event()
    event.record()
    graph.capture_end()
    with pytest.raises(RuntimeError, match="event last recorded in a capturing stream"):
        event.query()


def test_capture_ids_are_unique(simulation):
    """Two captures of one stream have two ids; none outside, none once invalidated."""
    stream, ids = torch.cuda.Stream(), []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            ids.append(simulation.capture_id(stream.cuda_stream))
            assert simulation.current_stream_handle() == stream.cuda_stream
            assert torch.cuda.CUDAGraph.get_currently_capturing_graph() is graph
    assert None not in ids
    assert ids[0] != ids[1]
    assert simulation.capture_id(stream.cuda_stream) is None
    broken = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        broken.capture_begin()
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            torch.cuda.synchronize()
        assert simulation.capture_id(stream.cuda_stream) is None
        with pytest.raises(RuntimeError, match="previous error during capture"):
            broken.capture_end()


def test_two_threads_capture_at_once(simulation):
    """thread_local captures of two threads, in step, do not disturb each other."""
    barrier, values = threading.Barrier(2, timeout=30), {}

    def work(name, factor):
        x, graph, stream = torch.ones(4), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        barrier.wait()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            barrier.wait()
            scale(x, factor)
            x.add_(1)
            barrier.wait()
            graph.capture_end()
        graph.replay()
        values[name] = x.tolist(), simulation.node_names(graph)

    scale(torch.ones(4))
    threads = [threading.Thread(target=work, args=(name, name)) for name in (2.0, 5.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    nodes = ["scale_", "aten.add_.Tensor"]
    assert values == {2.0: ([3.0] * 4, nodes), 5.0: ([6.0] * 4, nodes)}


def test_current_stream_belongs_to_the_thread(simulation):
    """stream() sets the calling thread's stream, also nested, and puts it back."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    default = torch.cuda.default_stream()
    seen = []
    with torch.cuda.stream(first):
        with second:
            assert torch.cuda.current_stream() == second
        assert torch.cuda.current_stream() == first
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
    assert seen == [default]
    torch.cuda.set_stream(second)
    assert torch.cuda.current_stream() == second
    torch.cuda.set_stream(default)
    with torch.cuda.stream(None):
        assert torch.cuda.current_stream() == default


def test_stream_methods_are_pythons(simulation):
    """A tool can wrap synchronize on the class, as it can on torch's."""
    assert "synchronize" in vars(torch.cuda.Stream)
    external = torch.cuda.ExternalStream(torch.cuda.Stream().cuda_stream)
    assert external in {external}
    assert repr(external).startswith("<torch.cuda.Stream device=cuda:0 cuda_stream=0x")


def test_elapsed_time_needs_timed_and_recorded_events(simulation):
    """As in torch, events without timing or a recording have no time."""
    timed = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with pytest.raises(ValueError, match="must be recorded"):
        timed[0].elapsed_time(timed[1])
    plain = torch.cuda.Event()
    plain.record()
    timed[0].record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        timed[0].elapsed_time(plain)
