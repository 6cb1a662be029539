"""The graph watch: which captures are open, how they end, how often they are replayed."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

import lazytrace
from lazytrace.records import ArgState, CaptureState, LaunchState
from tests.conftest import Device
from tests.kernels import scale_

pytestmark = pytest.mark.core


def _launch(x: torch.Tensor) -> None:
    scale_[(1,)](x, x.numel(), 2.0, BLOCK=16)


def _states(**filters: bool) -> list[LaunchState]:
    return [record.state for record in lazytrace.records(**filters)]


def test_disabling_inside_a_capture_keeps_its_books(device: Device, tmp_path: Path) -> None:
    """The trace ends with the capture, whose launches are in it; the class is original at once."""
    original = torch.cuda.CUDAGraph.capture_end
    x = torch.ones(4, device=device.torch_device)
    tracer = lazytrace.enable(tmp_path / "t.ndjson")
    _launch(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _launch(x)
        lazytrace.disable()
        assert torch.cuda.CUDAGraph.capture_end is original
        _launch(x)  # not traced any more
    assert "capture_end" not in vars(graph)
    trace = lazytrace.read(tmp_path / "t.ndjson")
    assert trace.complete
    captured = trace.records(captured=True)
    assert [record.count for record in captured] == [1]
    assert captured[0].state is LaunchState.NEVER_REPLAYED
    assert [record.count for record in tracer.records()] == [1, 1]
    graph.replay()
    device.synchronize()
    assert x.tolist() == [8.0] * 4


def test_a_capture_begun_before_enable_is_foreign(device: Device) -> None:
    """Its launches are described; nothing is claimed about replays that were not seen."""
    x = torch.ones(4, device=device.torch_device)
    _launch(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        lazytrace.enable()
        _launch(x)
    graph.replay()
    device.synchronize()
    (record,) = lazytrace.records()
    assert record.capture is not None
    assert record.args["x"].state is ArgState.SKIPPED
    assert record.args["x"].reason == "foreign_capture"
    lazytrace.disable()


def test_a_capture_inside_an_except_block_is_no_failure(device: Device) -> None:
    """An exception that was being handled before the capture began does not fail it."""
    x = torch.ones(4, device=device.torch_device)
    lazytrace.enable()
    graph = torch.cuda.CUDAGraph()
    _launch(x)
    try:
        raise ValueError("before")
    except ValueError:
        with torch.cuda.graph(graph):
            _launch(x)
    graph.replay()
    device.synchronize()
    assert _states(captured=True) == [LaunchState.COMPLETE]
    lazytrace.disable()


def test_a_body_that_raised_counts_as_failed_until_it_is_replayed(device: Device) -> None:
    """CUDA ends such a capture well; only a replay shows that the launches ran after all."""
    x = torch.ones(4, device=device.torch_device)
    lazytrace.enable()
    _launch(x)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ValueError, match="body"), torch.cuda.graph(graph):
        _launch(x)
        raise ValueError("body")
    assert _states(captured=True) == [LaunchState.CAPTURE_FAILED]
    assert [problem.kind for problem in lazytrace.problems()] == ["capture_failed"]
    graph.replay()
    device.synchronize()
    (record,) = lazytrace.records(captured=True)
    assert record.state is LaunchState.COMPLETE
    assert record.args["x"].values.max == 4.0
    lazytrace.disable()


def test_a_reset_graph_begins_a_new_epoch(device: Device) -> None:
    """The second capture of a graph object is told apart from the first."""
    x = torch.ones(4, device=device.torch_device)
    lazytrace.enable()
    _launch(x)
    graph = torch.cuda.CUDAGraph()
    for _ in range(2):
        with torch.cuda.graph(graph):
            _launch(x)
        graph.replay()
        device.synchronize()
        graph.reset()
    captures = [record.capture for record in lazytrace.records(captured=True)]
    assert [(capture.graph, capture.epoch) for capture in captures] == [(0, 0), (0, 1)]
    assert [record.replays for record in lazytrace.records(captured=True)] == [1, 1]
    lazytrace.disable()


def test_replays_are_counted_after_the_values_were_read(device: Device) -> None:
    """`replays` is what the graph has run so far, not when values were read."""
    x = torch.ones(4, device=device.torch_device)
    lazytrace.enable()
    _launch(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _launch(x)
    for _ in range(3):
        graph.replay()
        device.synchronize()
    (record,) = lazytrace.records(captured=True)
    assert record.replays == 3
    assert record.args["x"].observed.replay == 1
    assert record.args["x"].values.max == 4.0
    lazytrace.flush(again=True)
    (record,) = lazytrace.records(captured=True)
    assert record.args["x"].observed.replay == 3
    assert record.args["x"].values.max == 16.0
    lazytrace.disable()


def test_a_destroyed_graph_is_never_replayed(device: Device) -> None:
    """C7: its launches are closed, and the problem says that they never ran."""
    x = torch.ones(4, device=device.torch_device)
    tracer = lazytrace.enable()
    _launch(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _launch(x)
    del graph
    gc.collect()
    (record,) = lazytrace.records(captured=True)
    assert record.state is LaunchState.NEVER_REPLAYED
    assert record.args["x"].state is ArgState.EXPIRED
    assert [problem.kind for problem in lazytrace.problems()] == ["never_replayed"]
    lazytrace.disable()
    assert tracer.records(captured=True)[0].state is LaunchState.NEVER_REPLAYED


def test_a_side_stream_that_joined_is_in_the_same_capture(device: Device) -> None:
    """CUDA's capture id tells that two streams build one graph."""
    x = torch.ones(4, device=device.torch_device)
    y = torch.ones(4, device=device.torch_device)
    lazytrace.enable()
    _launch(x)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _launch(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _launch(y)
        torch.cuda.current_stream().wait_stream(side)
    graph.replay()
    device.synchronize()
    first, second = lazytrace.records(captured=True)
    assert first.capture.graph == second.capture.graph
    assert (first.capture.index, second.capture.index) == (0, 1)
    assert first.stream != second.stream
    assert (first.args["x"].values.max, second.args["x"].values.max) == (4.0, 2.0)
    lazytrace.disable()


def test_a_capture_through_the_base_class_is_named_by_its_cuda_id(device: Device) -> None:
    """What bypasses torch.cuda.CUDAGraph is seen as a capture all the same."""
    x = torch.ones(4, device=device.torch_device)
    lazytrace.enable()
    _launch(x)
    stream = torch.cuda.Stream()
    graph = torch._C._CUDAGraph()
    device.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(None, "global")
        _launch(x)
        graph.capture_end()
    (record,) = lazytrace.records(captured=True)
    assert record.capture.name == f"capture {record.capture.cuda_id}"
    assert record.args["x"].reason == "foreign_capture"
    assert record.state is LaunchState.COMPLETE
    lazytrace.disable()


def test_the_state_words_are_those_of_the_file() -> None:
    """An enumeration equals its wire value."""
    assert CaptureState.NEVER_REPLAYED == "never_replayed"
    assert f"{CaptureState.FAILED}" == "failed"
