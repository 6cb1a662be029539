"""Cases from public reports: captures, replays and launches."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from pathlib import Path

import attrs
import case_kernels
import kernels
import pytest
import torch
import triton
from conftest import Device, needs_gpu
from triton.testing import do_bench_cudagraph

import lazytrace
from lazytrace.testing import simulate

PACKAGE = Path(lazytrace.__file__).parent
MANY = 10_000


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=(pytest.mark.gpu, needs_gpu))])
def light_device(request):
    """A device on which thousands of launches are quick: the simulated one executes nothing."""
    if request.param == "cuda":
        yield Device("cuda", "cuda")
        return
    with simulate(execute=False) as simulation:
        yield Device("simulated", "cpu", simulation)


@attrs.frozen
class Scale:
    """``x *= 2`` on four ones."""

    x: torch.Tensor

    @classmethod
    def on(cls, device):
        return cls(torch.ones(4, device=device.torch_device))

    def launch(self):
        kernels.scale_[(1,)](self.x, 4, 2.0, BLOCK=4)


def kinds(tracer):
    return [problem.kind.value for problem in tracer.problems()]


# C2


@pytest.mark.core
def test_thousands_of_captured_launches_are_one_record_with_a_true_count(light_device):
    """C2: a tiny kernel captured 10,000 times and replayed ten times is one run."""
    x = torch.ones(4, device=light_device.torch_device)
    with lazytrace.trace() as tracer:
        graph = case_kernels.captured(
            lambda: [case_kernels.ignore[(1,)](x, x, 5) for _ in range(MANY)]
        )
        for _ in range(10):
            graph.replay()
        light_device.synchronize()
        (record,) = tracer.records()
    assert (record.count, record.replays, record.state) == (MANY, 10, "complete")
    assert (record.capture.index, record.args["x"].values.max) == (0, 1.0)


@pytest.mark.parametrize("kind", ["tensors", "tuple", "descriptor", "subclass", "grid list"])
def test_identical_captured_launches_cost_no_memory(light_device, kind):
    """C2: 10,000 of them would add less than 1 MiB of ours, whatever their arguments are."""
    many = MANY if kind == "tensors" else MANY // 5
    x = torch.ones(16, 16, device=light_device.torch_device)

    class Subclass(torch.Tensor):
        pass

    grid = [1] if kind == "grid list" else (1,)
    argument = {
        "tensors": lambda: x,
        "tuple": lambda: (x, (x, 3)),
        "descriptor": lambda: triton.tools.tensor_descriptor.TensorDescriptor.from_tensor(
            x, [16, 16]
        ),
        "subclass": lambda: x.as_subclass(Subclass),
        "grid list": lambda: x,
    }[kind]()

    def launch(times):
        for _ in range(times):
            case_kernels.ignore[grid](x, argument, 5)

    with lazytrace.trace() as tracer:
        launch(3)
        tracemalloc.start()
        try:
            graph = case_kernels.captured(lambda: launch(many))
            gc.collect()  # empties Python's free lists, which keep thousands of dead tuples
            own = tracemalloc.take_snapshot().filter_traces(
                [
                    tracemalloc.Filter(True, str(PACKAGE / "*")),
                    tracemalloc.Filter(False, str(PACKAGE / "_simulator" / "*")),
                ]
            )
        finally:
            tracemalloc.stop()
        records = tracer.records(captured=True)
        del graph
    assert sum(record.count for record in records) == many
    assert len(records) == 1
    assert sum(trace.size for trace in own.traces) < (many << 20) / MANY


# C3


def test_a_flush_enqueues_nothing_in_a_timed_span(device):
    """C3: events around replays without a synchronise see the user's kernels only."""
    scale = Scale.on(device)
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    with lazytrace.trace() as tracer:
        graph = case_kernels.captured(scale.launch)
        start.record()
        for _ in range(5):
            graph.replay()
        end.record()
        device.synchronize()
        (record,) = tracer.records()
    assert record.args["x"].values.max == 32.0
    if device.simulation is not None:
        assert start.elapsed_time(end) == 5.0


# C6


@pytest.mark.core
def test_an_exception_in_a_capture_is_unchanged_and_its_launches_are_marked(device, tmp_path):
    """C6: the launches never ran, nothing leaks, and the next capture works."""
    scale, error = Scale.on(device), ValueError("the user's")
    graph = torch.cuda.CUDAGraph()
    with lazytrace.trace(tmp_path / "t.ndjson", max_pending=1) as tracer:
        with pytest.raises(ValueError, match="the user's") as caught, torch.cuda.graph(graph):
            scale.launch()
            raise error
        assert caught.value is error
        (failed,) = tracer.records()
        assert kinds(tracer) == ["capture_failed"]
        del graph, caught, error
        gc.collect()
        following = case_kernels.captured(scale.launch)
        following.replay()
        device.synchronize()
        launches = tracer.records()
    assert (failed.state, failed.outcome) == ("capture_failed", "submitted")
    assert (failed.args["x"].state, failed.args["x"].values) == ("skipped", None)
    assert [record.state for record in launches] == ["capture_failed", "complete"]
    assert launches[1].args["x"].values.max == 2.0
    trace = lazytrace.read(tracer.path)
    assert list(trace.launches) == launches
    assert [problem.kind for problem in trace.problems] == ["capture_failed"]


@pytest.mark.core
def test_an_invalidated_capture_is_marked_and_the_users_error_is_cudas(device):
    """C6: a synchronisation inside a capture fails as it does untraced."""
    scale, graph = Scale.on(device), torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream()
    with lazytrace.trace() as tracer:
        with (
            pytest.raises(RuntimeError, match="previous error during capture"),
            torch.cuda.graph(graph),
        ):
            scale.launch()
            with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
                torch.cuda.synchronize()
        torch.cuda.set_stream(before)  # torch leaves the capture's stream current
        (failed,) = tracer.records()
        assert failed.state == "capture_failed"
        assert kinds(tracer) == ["capture_failed"]
        following = case_kernels.captured(scale.launch)
        following.replay()
        device.synchronize()
        assert tracer.records()[-1].args["x"].values.max == 2.0


@pytest.mark.core
def test_a_capture_inside_an_except_block_is_no_failed_one(device):
    """C6: the exception being handled around a capture is not the capture's."""
    scale = Scale.on(device)
    with lazytrace.trace() as tracer:
        try:
            raise KeyError("no graph yet")
        except KeyError:
            graph = case_kernels.captured(scale.launch)
        graph.replay()
        device.synchronize()
        (record,) = tracer.records()
    assert record.state == "complete"
    assert kinds(tracer) == []


@pytest.mark.core
def test_an_exception_handled_inside_a_capture_does_not_fail_it(device):
    """C6: only what leaves the capture's block breaks it off."""
    scale, graph = Scale.on(device), torch.cuda.CUDAGraph()
    with lazytrace.trace() as tracer:
        with torch.cuda.graph(graph):
            try:
                raise KeyError("handled")
            except KeyError:
                scale.launch()
        graph.replay()
        device.synchronize()
        assert [record.state for record in tracer.records()] == ["complete"]


@pytest.mark.core
def test_disable_in_a_capture_leaves_its_launches_unfailed(device):
    """A capture that ends well after disable() did not fail, and the user's replay is right."""
    scale, graph = Scale.on(device), torch.cuda.CUDAGraph()
    with lazytrace.trace() as tracer:
        with torch.cuda.graph(graph):
            scale.launch()
            tracer.disable()
            scale.launch()
        graph.replay()
        device.synchronize()
    (record,) = tracer.records()
    assert record.count == 1
    assert record.state == "never_replayed"
    assert [problem.message for problem in tracer.problems()] == [
        "graph 0 was never replayed while it was traced: its 1 launches did not run"
    ]
    assert scale.x.tolist() == [4.0] * 4


@pytest.mark.core
def test_enable_in_a_capture_treats_it_as_foreign(device):
    """The launches that follow are described and never read; a later capture is."""
    scale, graph = Scale.on(device), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale.launch()
        tracer = lazytrace.enable()
        scale.launch()
    graph.replay()
    device.synchronize()
    (record,) = tracer.records()
    assert record.args["x"].shape == (4,)
    assert (record.args["x"].state, record.args["x"].reason) == ("skipped", "foreign_capture")
    assert record.capture is not None
    following = case_kernels.captured(scale.launch)
    following.replay()
    device.synchronize()
    assert tracer.records()[-1].args["x"].values.max == 8.0
    assert kinds(tracer) == []
    lazytrace.disable()


# C7


@pytest.mark.core
@pytest.mark.parametrize("how", ["destroyed", "reset"])
def test_a_graph_that_goes_without_a_replay_closes_its_launches(device, tmp_path, how):
    """C7: never_replayed, and neither the graph nor the tensors live on."""
    scale = Scale.on(device)
    storage = weakref.ref(scale.x.untyped_storage())
    with lazytrace.trace(tmp_path / "t.ndjson") as tracer:
        graph = case_kernels.captured(scale.launch)
        alive = weakref.ref(graph)
        assert [record.state for record in tracer.records()] == ["pending"]
        if how == "reset":
            graph.reset()
        del graph
        gc.collect()
        assert alive() is None
        (record,) = tracer.records()
        assert kinds(tracer) == ["never_replayed"]
        del scale
        gc.collect()
        assert storage() is None
    assert (record.state, record.replays) == ("never_replayed", 0)
    assert (record.args["x"].state, record.args["x"].reason) == ("expired", "never_replayed")
    assert list(lazytrace.read(tracer.path).launches) == [record]


@pytest.mark.core
def test_a_replayed_graph_that_goes_keeps_what_was_read(device):
    """C7: do_bench_cudagraph's graph dies when it returns; its records stay complete."""
    scale = Scale.on(device)
    with lazytrace.trace() as tracer:
        graph = case_kernels.captured(scale.launch)
        graph.replay()
        del graph
        gc.collect()
        device.synchronize()
        (record,) = tracer.records()
    assert (record.state, record.replays) == ("complete", 1)
    assert record.args["x"].values.max == 2.0
    assert kinds(tracer) == []


# C13


def fresh_kernel():
    """A new jitted kernel that nothing else refers to."""
    return triton.jit(kernels.scale_.fn)


@pytest.mark.core
def test_a_kernel_dropped_inside_its_capture_is_not_unloaded_there(device):
    """C13: unloading a module inside a capture would break it; the kernel dies after it."""
    x, kernel = torch.ones(4, device=device.torch_device), fresh_kernel()
    compiled = weakref.ref(kernel.warmup(x, 4, 2.0, BLOCK=4, grid=(1,)))
    graph = torch.cuda.CUDAGraph()
    with lazytrace.trace() as tracer:
        kernel[(1,)](x, 4, 2.0, BLOCK=4)
        with torch.cuda.graph(graph):
            kernel[(1,)](x, 4, 2.0, BLOCK=4)
            getattr(triton.runtime.jit, "_triton_jit_function_registry", {}).clear()
            del kernel
            gc.collect()
            assert compiled() is not None
        gc.collect()
        assert compiled() is None
        graph.replay()
        device.synchronize()
        assert [record.state for record in tracer.records()] == ["complete", "complete"]
    assert x.tolist() == [4.0] * 4


# C14


@pytest.mark.core
@pytest.mark.parametrize("grid", [(0,), (0, 3), (2, 0, 1), (1, 1, 0)])
def test_an_empty_grid_executes_nothing_and_the_record_says_so(device, grid):
    """C14: the hook fires, nothing runs: outcome empty_grid, no values."""
    scale = Scale.on(device)
    with lazytrace.trace() as tracer:
        kernels.scale_[grid](scale.x, 4, 2.0, BLOCK=4)
        (record,) = tracer.records()
    assert record.outcome == "empty_grid"
    assert record.grid == (*grid, 1, 1)[:3]
    assert (record.state, record.args["x"].state) == ("complete", "skipped")
    assert record.args["x"].reason == "not_executed"
    assert scale.x.tolist() == [1.0] * 4


@pytest.mark.core
def test_an_empty_grid_in_a_capture_adds_no_node_and_no_values(device):
    """C14: also captured, beside a launch that runs."""
    scale = Scale.on(device)
    with lazytrace.trace() as tracer:
        graph = case_kernels.captured(
            lambda: [kernels.scale_[(0,)](scale.x, 4, 2.0, BLOCK=4), scale.launch()]
        )
        graph.replay()
        device.synchronize()
        launches = tracer.records()
    assert [record.outcome for record in launches] == ["empty_grid", "submitted"]
    assert [record.capture.index for record in launches] == [0, 1]
    assert [record.args["x"].state for record in launches] == ["skipped", "materialized"]
    assert launches[1].args["x"].values.max == 2.0


# C15


@pytest.mark.core
def test_a_kernel_warmed_up_before_enable_has_full_arguments(device):
    """C15: tracing does not depend on seeing the compilation."""
    scale = Scale.on(device)
    scale.launch()
    with lazytrace.trace() as tracer:
        scale.launch()
        (record,) = tracer.records()
    assert list(record.args) == ["x", "n", "factor", "BLOCK"]
    assert record.args["x"].shape == (4,)
    assert record.args["x"].values.max == 4.0
    assert (record.args["n"].value, record.args["factor"].value) == (4, 2.0)
    assert (record.args["BLOCK"].kind, record.args["BLOCK"].value) == ("constexpr", 4)
    assert record.kernel.source is not None


@pytest.mark.core
def test_a_kernel_warmed_up_before_enable_is_traced_in_a_benchmark(device):
    """C15: the same under do_bench_cudagraph, where the first launch seen is captured."""
    scale = Scale.on(device)
    scale.launch()
    with lazytrace.trace() as tracer:
        do_bench_cudagraph(scale.launch, rep=2)
        captured = tracer.records(captured=True)
    assert captured
    assert {record.state for record in captured} == {"complete"}


# C44


@pytest.mark.core
def test_a_trace_that_began_late_has_everything_about_each_launch(device, tmp_path):
    """C44: with no compilation seen, the file alone says which kernel and which arguments."""
    scale = Scale.on(device)
    scale.launch()
    graph = case_kernels.captured(scale.launch)
    with lazytrace.trace(tmp_path / "t.ndjson") as tracer:
        graph.replay()
        scale.launch()
        device.synchronize()
    (record,) = lazytrace.read(tracer.path).launches
    assert record.kernel.name == "scale_"
    assert len(record.kernel.hash) == 64
    assert "x *= factor" in record.kernel.source
    assert record.kernel.num_warps == 4
    assert record.args["x"].values.max == 8.0


# A launch that fails


def test_a_kernel_that_cannot_be_loaded_is_a_failed_launch(device):
    """Out of resources: the error is Triton's own, the record says that nothing was submitted."""
    x = torch.ones(256, 256, device=device.torch_device)
    out_of_resources = triton.runtime.errors.OutOfResources
    with lazytrace.trace() as tracer:
        with pytest.raises(out_of_resources):
            case_kernels.transposed_tile[(1,)](x, x, SIZE=256, num_warps=32)
        (record,) = tracer.records()
    assert (record.outcome, record.state) == ("failed", "complete")
    assert (record.args["x"].state, record.args["x"].reason) == ("skipped", "launch_failed")
