"""do_bench_cudagraph under the tracer: undisturbed, and every launch has its values."""

from __future__ import annotations

import case_kernels
import kernels
import pytest
import torch
import triton
from triton.testing import do_bench_cudagraph

import lazytrace
from lazytrace.testing import simulate

REP_MS = 20
SIMULATED_LAUNCHES = 26  # one, five estimating, twenty captured: the virtual clock's arithmetic


class Counted:
    """A benchmarked function that counts its calls."""

    def __init__(self, launch):
        self.launch = launch
        self.calls = 0

    def __call__(self):
        self.calls += 1
        self.launch()


def axpy_inputs(device, size=400):
    x = torch.arange(size, dtype=torch.float32, device=device.torch_device)
    y = torch.full((size,), 0.5, device=device.torch_device)
    return x, y, torch.zeros(size, device=device.torch_device)


def axpy_launch(x, y, out):
    size = x.numel()
    return lambda: kernels.axpy[(triton.cdiv(size, 256),)](x, y, out, size, 2.0, BLOCK=256)


def assert_values(arg, tensor):
    """The record's statistics are those that torch finds in the same tensor."""
    expected = tensor.detach().to(torch.float64)
    assert arg.state == "materialized"
    assert arg.values.min == expected.min().item()
    assert arg.values.max == expected.max().item()
    assert arg.values.mean == pytest.approx(expected.mean().item(), rel=1e-6, abs=1e-9)
    assert arg.values.std == pytest.approx(expected.std().item(), rel=1e-6, abs=1e-9)
    assert arg.values.zero_count == int((expected == 0).sum())
    assert arg.values.nan_count == arg.values.posinf_count == arg.values.neginf_count == 0


def assert_described(arg, tensor):
    """The record's description is the tensor's own metadata."""
    assert arg.kind == "tensor"
    assert arg.shape == tuple(tensor.shape)
    assert arg.strides == tensor.stride()
    assert f"torch.{arg.dtype}" == str(tensor.dtype)
    assert arg.device == str(tensor.device)
    assert (arg.storage_offset, arg.data_ptr) == (tensor.storage_offset(), tensor.data_ptr())
    assert (arg.numel, arg.element_size) == (tensor.numel(), tensor.element_size())


def assert_benchmark_records(launches, calls, tensors):
    """Every call is a launch, captured ones carry the first replay's values."""
    assert sum(record.count for record in launches) == calls
    captured = [record for record in launches if record.capture is not None]
    assert sum(record.count for record in captured) == calls - 6
    for record in captured:
        assert record.state == "complete"
        assert record.outcome == "submitted"
        assert record.replays == 10
        for path, tensor in tensors.items():
            assert_described(record.args[path], tensor)
            assert_values(record.args[path], tensor)
            observed = record.args[path].observed
            assert (observed.point, observed.replay) == ("after_replay", 1)
            assert not observed.raced


@pytest.mark.core
def test_a_benchmarked_vector_add_has_arguments_and_values(device, tmp_path):
    """C1: no error, and every captured launch has its arguments and, after the replay, values."""
    x, y, out = axpy_inputs(device)
    call = Counted(axpy_launch(x, y, out))
    with lazytrace.trace(tmp_path / "trace.ndjson") as tracer:
        do_bench_cudagraph(call, rep=REP_MS)
        launches = tracer.records()
    assert torch.equal(out, 2.0 * x + y)
    assert_benchmark_records(launches, call.calls, {"x": x, "y": y, "out": out})
    captured = [record for record in launches if record.capture is not None]
    assert [record.args["alpha"].value for record in captured] == [2.0] * len(captured)
    assert {record.args["BLOCK"].kind for record in captured} == {"constexpr"}
    assert {record.grid for record in launches} == {(2, 1, 1)}
    assert list(lazytrace.read(tracer.path).launches) == tracer.records()


@pytest.mark.core
def test_the_benchmark_reports_what_it_reports_untraced():
    """C1 and C3: the same time, number of repetitions and replays as without the tracer."""
    launch = axpy_launch(torch.ones(400), torch.ones(400), torch.ones(400))
    untraced, traced = Counted(launch), Counted(launch)
    with simulate(execute=False) as simulation:
        untraced_ms = do_bench_cudagraph(untraced, rep=REP_MS)
        clock_ms = simulation.clock_ms
        with lazytrace.trace():
            assert do_bench_cudagraph(traced, rep=REP_MS) == untraced_ms
        assert traced.calls == untraced.calls == SIMULATED_LAUNCHES
        assert simulation.clock_ms == 2 * clock_ms


def test_a_benchmarked_softmax_has_the_right_values(device):
    """The softmax's rows sum to one, and the records agree with torch on the same tensors."""
    x = torch.randn(4, 200, device=device.torch_device)
    out = torch.zeros_like(x)
    call = Counted(lambda: kernels.softmax[(4,)](x, out, 200, 200, BLOCK=256))
    with lazytrace.trace() as tracer:
        do_bench_cudagraph(call, rep=3)
        launches = tracer.records()
    torch.testing.assert_close(out, torch.softmax(x, dim=1))
    assert_benchmark_records(launches, call.calls, {"x": x, "out": out})
    assert launches[-1].grid == (4, 1, 1)


def test_a_benchmarked_matmul_has_the_right_values(device):
    """A two-dimensional grid, transposed operand and all, agrees with torch."""
    a = torch.randn(32, 32, device=device.torch_device)
    b = torch.randn(32, 32, device=device.torch_device).t()
    c = torch.zeros(32, 32, device=device.torch_device)
    strides = (*a.stride(), *b.stride(), *c.stride())

    def launch():
        kernels.matmul[(2, 2)](a, b, c, 32, 32, 32, *strides, BM=16, BN=16, BK=32)

    call = Counted(launch)
    with lazytrace.trace() as tracer:
        do_bench_cudagraph(call, rep=3)
        launches = tracer.records()
    torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-2)
    assert_benchmark_records(launches, call.calls, {"a": a, "b": b, "c": c})
    assert launches[-1].grid == (2, 2, 1)
    assert launches[-1].args["b"].strides == (1, 32)


def test_trial_launches_of_an_autotuned_kernel_are_told_from_the_winner(device):
    """Trials are labelled, read no values, and the winner's captured launches are the run's."""
    tuned = triton.autotune(
        [triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 512})],
        key=["n"],
        do_bench=lambda call, quantiles: (call(), [1.0, 1.0, 1.0])[1],
    )(kernels.axpy)
    x, y, out = axpy_inputs(device)
    with lazytrace.trace() as tracer:
        tuned[lambda meta: (triton.cdiv(400, meta["BLOCK"]),)](x, y, out, 400, 2.0)
        trials = tracer.records()
        graph = case_kernels.captured(
            lambda: tuned[lambda meta: (triton.cdiv(400, meta["BLOCK"]),)](x, y, out, 400, 2.0)
        )
        graph.replay()
        device.synchronize()
        captured = tracer.records(captured=True)
    assert {r.args["BLOCK"].value for r in trials if r.phase == "trial"} == {256, 512}
    assert {r.args["x"].reason for r in trials if r.phase == "trial"} == {"autotune_trial"}
    assert [r.phase for r in trials][-1] == "run"
    (winner,) = captured
    assert winner.phase == "run"
    assert winner.args["BLOCK"].value == tuned.best_config.kwargs["BLOCK"]
    assert_values(winner.args["out"], out)
