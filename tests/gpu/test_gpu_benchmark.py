"""do_bench_cudagraph on a GPU, at real sizes: what is recorded, and that nothing is disturbed."""

from __future__ import annotations

import gpu_kernels
import kernels
import pytest
import torch
import triton
from conftest import needs_gpu
from torch.autograd import DeviceType
from triton.testing import do_bench_cudagraph

import lazytrace

pytestmark = [pytest.mark.gpu, needs_gpu]

needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9,
    reason="needs a Hopper GPU",
)


class Counted:
    """A benchmarked function that counts its calls."""

    def __init__(self, launch):
        self.launch = launch
        self.calls = 0

    def __call__(self):
        self.calls += 1
        self.launch()


def benchmark(launch):
    """The benchmark's records, and how often it called."""
    call = Counted(launch)
    with lazytrace.trace(ir=True) as tracer:
        do_bench_cudagraph(call)
        records = tracer.records()
        assert tracer.problems() == []
    return records, call.calls


def assert_values(argument, tensor):
    """The record's statistics are torch's of the same tensor."""
    expected = tensor.double()
    assert argument.state == "materialized"
    values = argument.values
    assert (values.min, values.max) == (expected.min().item(), expected.max().item())
    assert values.mean == pytest.approx(expected.mean().item(), rel=1e-5, abs=1e-6)
    assert values.std == pytest.approx(expected.std().item(), rel=1e-5)
    assert values.zero_count == int((expected == 0).sum())
    assert values.nan_count == 0
    assert argument.shape == tuple(tensor.shape)
    assert argument.strides == tensor.stride()
    assert argument.data_ptr == tensor.data_ptr()


def assert_captured(records, calls, tensors):
    """Each captured launch is resolved after the first replay's synchronisation."""
    captured = [record for record in records if record.capture is not None]
    assert sum(record.count for record in captured) == calls - 6
    for record in captured:
        assert (record.state, record.replays, record.phase) == ("complete", 10, "run")
        for path, tensor in tensors.items():
            assert_values(record.args[path], tensor)
            observed = record.args[path].observed
            assert (observed.point, observed.replay) == ("after_replay", 1)
    assert not any(record.kernel.name.startswith("lazytrace") for record in records)
    return captured


def test_vector_add():
    """(a) 1M elements: every launch, folded, with the right values."""
    n = 1 << 20
    x, y, out = (torch.randn(n, device="cuda") for _ in range(3))
    records, calls = benchmark(
        lambda: kernels.axpy[(triton.cdiv(n, 1024),)](x, y, out, n, 1.0, BLOCK=1024)
    )
    assert torch.equal(out, x + y)
    assert sum(record.count for record in records) == calls
    captured = assert_captured(records, calls, {"x": x, "y": y, "out": out})
    assert len(captured) == 1


def test_softmax():
    """(b) 4096 rows of 1000: as torch has it."""
    x = torch.randn(4096, 1000, device="cuda")
    out = torch.zeros_like(x)
    records, calls = benchmark(
        lambda: kernels.softmax[(4096,)](x, out, x.stride(0), 1000, BLOCK=1024)
    )
    torch.testing.assert_close(out, torch.softmax(x, dim=1))
    assert_captured(records, calls, {"x": x, "out": out})


@needs_hopper
@pytest.mark.parametrize("specialize", [False, True], ids=["pipelined", "warp-specialised"])
def test_persistent_gemm_over_descriptors(specialize):
    """(c) bfloat16, 4096 cubed, host TMA descriptors: bases, blocks and values."""
    gemm = gpu_kernels.Gemm(4096, specialize=specialize)
    records, calls = benchmark(gemm.launch)
    torch.testing.assert_close(gemm.c, gemm.expected(), rtol=2e-2, atol=0.5)
    assert sum(record.count for record in records) == calls
    tensors = {"a.base": gemm.a, "b.base": gemm.b, "c.base": gemm.c}
    captured = assert_captured(records, calls, tensors)
    assert len(captured) == 1
    args = captured[0].args
    assert args["a"].kind == "descriptor"
    assert (args["a"].shape, args["a"].strides) == ((4096, 4096), (4096, 1))
    assert (args["a"].block_shape, args["c"].block_shape) == ((gemm.rows, 64), (gemm.rows, 128))
    assert args["a.base"].dtype == "bfloat16"
    assert captured[0].grid == (gemm.programs, 1, 1)
    ir = captured[0].kernel.ir
    assert ("ttg.warp_specialize" in ir["ttgir"]) == specialize
    assert "cp.async.bulk.tensor" in ir["ptx"]


def test_autotuned_kernel():
    """(d) trials are told apart; captured launches are the winner's."""
    configs = [
        triton.Config({"BLOCK": block}, num_warps=warps)
        for block in (512, 1024)
        for warps in (4, 8)
    ]
    tuned = triton.autotune(configs, key=["n"])(kernels.axpy)
    n = 1 << 20
    x, y, out = (torch.randn(n, device="cuda") for _ in range(3))
    records, calls = benchmark(
        lambda: tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, 1.0)
    )
    assert torch.equal(out, x + y)
    captured = assert_captured(records, calls, {"x": x, "y": y, "out": out})
    trials = [record for record in records if record.phase == "trial"]
    assert {(r.args["BLOCK"].value, r.kernel.num_warps) for r in trials} == {
        (config.kwargs["BLOCK"], config.num_warps) for config in configs
    }
    assert sum(record.count for record in records if record.phase == "run") == calls
    best = tuned.best_config
    assert {(r.args["BLOCK"].value, r.kernel.num_warps) for r in captured} == {
        (best.kwargs["BLOCK"], best.num_warps)
    }


# Undisturbed


def kernel_nodes(graph):
    """How many nodes a kept graph has, by CUDA's own count."""
    runtime = pytest.importorskip("cuda.bindings.runtime")
    error, _, count = runtime.cudaGraphGetNodes(runtime.cudaGraph_t(graph.raw_cuda_graph()), 0)
    assert error == runtime.cudaError_t.cudaSuccess
    return count


@pytest.mark.parametrize("values", ["off", "deferred"])
def test_a_traced_graph_has_the_nodes_of_an_untraced_one(values):
    """Launches and torch operations between them: not one node more, or fewer."""
    n = 4096
    x, out = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")

    def body():
        for _ in range(10):
            kernels.axpy[(4,)](x, out, out, n, 2.0, BLOCK=1024)
            out.add_(1.0)

    def count():
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            body()
        return kernel_nodes(graph), graph

    body()
    untraced, _ = count()
    with lazytrace.trace(values=values):
        traced, graph = count()
        graph.replay()
        torch.cuda.synchronize()
        assert kernel_nodes(graph) == traced
    assert traced == untraced == 20


def test_a_timed_span_holds_no_device_work_of_ours():
    """100 replays between two events, without a synchronise: what we do comes after them."""
    n = 4096
    x, out = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with lazytrace.trace() as tracer:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(5):
                kernels.axpy[(4,)](x, x, out, n, 2.0, BLOCK=1024)
        cuda = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=cuda, acc_events=True) as profile:
            start.record()
            for _ in range(100):
                graph.replay()
            end.record()
            end.synchronize()
        torch.cuda.synchronize()
        (record,) = tracer.records()
    on_device = [event for event in profile.events() if event.device_type == DeviceType.CUDA]
    users = [event for event in on_device if "axpy" in event.name]
    others = [event for event in on_device if "axpy" not in event.name]
    assert len(users) == 500
    last = max(event.time_range.end for event in users)
    assert [event.name for event in others if event.time_range.start < last] == []
    assert (record.replays, record.state) == (100, "complete")
    assert_values(record.args["out"], out)


def chain(error):
    """The messages of an exception and of what it came from."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def test_a_naive_tracer_breaks_the_benchmark_and_ours_does_not(monkeypatch):
    """The seed: a hook that prints tensors fails in the capture with CUDA's message."""
    n = 4096
    x, out = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")

    def launch():
        kernels.axpy[(4,)](x, x, out, n, 2.0, BLOCK=1024)

    def naive(metadata):
        for value in metadata.get()["args"].values():
            str(value)

    before = torch.cuda.current_stream()
    monkeypatch.setattr(kernels.axpy, "launch_metadata", lambda grid, kernel, args: {"args": args})
    hook = triton.knobs.runtime.launch_enter_hook
    hook.add(naive)
    try:
        with pytest.raises(RuntimeError) as caught:
            do_bench_cudagraph(launch)
    finally:
        hook.remove(naive)
        torch.cuda.set_stream(before)  # torch leaves the failed capture's stream current
    message = "operation not permitted when stream is capturing"
    assert any(message in text for text in chain(caught.value))
    records, calls = benchmark(launch)
    assert sum(record.count for record in records) == calls
    assert {record.state.value for record in records} == {"complete"}
