"""values="at_launch" on a GPU: real nodes, real memory, other threads' captures, other dtypes."""

from __future__ import annotations

import random
import threading

import at_launch_kernels
import case_kernels
import kernels
import pytest
import torch
import triton
from at_launch_kernels import Model
from conftest import needs_gpu

import lazytrace

pytestmark = [pytest.mark.gpu, needs_gpu]

OURS = "lazytrace_launch_statistics"
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "int32", "int64", "bool"),
)  # no complex ones: Triton takes no pointer to them


def at_launch(**options):
    return lazytrace.trace(values="at_launch", **options)


def double(x):
    kernels.scale_[(triton.cdiv(x.numel(), 1024),)](x, x.numel(), 2.0, BLOCK=1024)


def non_finite(tracer):
    return [problem for problem in tracer.problems() if problem.kind == "non_finite"]


def node_names(graph):
    """The kernels' names of a graph that was captured with keep_graph=True, in any order."""
    driver = pytest.importorskip("cuda.bindings.driver")
    raw = driver.CUgraph(graph.raw_cuda_graph())
    _, _, count = driver.cuGraphGetNodes(raw, 0)
    _, nodes, _ = driver.cuGraphGetNodes(raw, count)
    names = []
    for node in nodes[:count]:
        error, params = driver.cuGraphKernelNodeGetParams(node)
        if error == driver.CUresult.CUDA_SUCCESS:
            names.append(driver.cuFuncGetName(params.func)[1].decode())
    return names


def launch_inside_another(graph, times):
    """Launches a graph whose only node is a copy of this one; the node's graph may be gone then.

    Through CUDA itself: torch refuses to replay a graph inside another's capture.
    """
    driver = pytest.importorskip("cuda.bindings.driver")

    def call(function, *args):
        error, *results = function(*args)
        assert error == driver.CUresult.CUDA_SUCCESS, error
        return results[0] if results else None

    inner = driver.CUgraph(graph.raw_cuda_graph())
    outer = call(driver.cuGraphCreate, 0)
    call(driver.cuGraphAddChildGraphNode, outer, None, 0, inner)
    executable = call(driver.cuGraphInstantiate, outer, 0)

    def launch():
        stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        for _ in range(times):
            call(driver.cuGraphLaunch, executable, stream)
        torch.cuda.synchronize()
        call(driver.cuGraphExecDestroy, executable)
        call(driver.cuGraphDestroy, outer)

    return launch


def kept(body):
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        body()
    return graph


def test_a_graph_has_the_users_nodes_and_ours():
    """Counted by CUDA itself: two of ours to each launch, none in the other modes."""
    x = torch.ones(4096, device="cuda")
    double(x)
    found = {}
    for values in ("off", "deferred", "at_launch"):
        with lazytrace.trace(values=values):
            names = node_names(kept(lambda: [double(x) for _ in range(5)]))
        found[values] = (names.count("scale_"), names.count(OURS), len(names))
    assert found == {"off": (5, 0, 5), "deferred": (5, 0, 5), "at_launch": (5, 10, 15)}


def test_tracing_leaves_torchs_memory_alone():
    """Slots, rows and partial results are outside torch's allocator."""
    x = torch.ones(1 << 20, device="cuda")
    double(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    with at_launch() as tracer:
        double(x)
        torch.cuda.synchronize()
        assert tracer.records()[0].args["x"].values_after.max == 4.0
        assert torch.cuda.memory_stats() == before


def test_a_graph_outlives_its_tracer():
    """After disable(), and another tracer's life, the nodes still run and harm nothing."""
    x = torch.ones(4096, device="cuda")
    double(x)
    x.fill_(1.0)
    with at_launch():
        graph = case_kernels.captured(lambda: [double(x) for _ in range(3)])
    with at_launch() as tracer:
        for _ in range(3):
            double(x)
        torch.cuda.synchronize()
        assert tracer.records()[-1].args["x"].values_after.max == 8.0
    del tracer
    x.fill_(1.0)
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    assert x[0].item() == 2.0**30


def test_another_threads_capture_survives():
    """While a thread captures in global mode, eager launches of this one are probed and read."""
    x, y = (torch.ones(4096, device="cuda") for _ in range(2))
    double(x)
    double(y)
    x.fill_(1.0)
    torch.cuda.synchronize()
    begun, done, failures, graphs = threading.Event(), threading.Event(), [], []

    def capture():
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                double(x)
                begun.set()
                done.wait(60)
                double(x)
            graphs.append(graph)
        except RuntimeError as error:
            failures.append(error)
            begun.set()

    with at_launch() as tracer:
        thread = threading.Thread(target=capture)
        thread.start()
        begun.wait(60)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                double(y)
        tracer.flush(wait=True)
        eager = tracer.records(captured=False)
        done.set()
        thread.join()
        assert failures == []
        graphs[0].replay()
        torch.cuda.synchronize()
        captured = tracer.records(captured=True)
    assert [record.args["x"].values.max for record in eager] == [2.0 * 2.0**n for n in range(20)]
    assert [record.args["x"].values_after.max for record in captured] == [2.0, 4.0]


@pytest.mark.parametrize("seed", range(8))
def test_random_arguments_have_torchs_own_statistics(seed):
    """125 random dtypes, shapes and strides each, captured: the values are float64 torch's."""
    rng = random.Random(seed)
    cases = [_view(rng) for _ in range(125)]
    with at_launch() as tracer:
        graph = case_kernels.captured(
            lambda: [case_kernels.ignore[(1,)](view, None, 5) for view in cases]
        )
        graph.replay()
        torch.cuda.synchronize()
        records = tracer.records(expand=True)
    assert len(records) == len(cases)
    for view, record in zip(cases, records, strict=True):
        _compare(view, record.args["x"])


def _view(rng):
    dtype = getattr(torch, rng.choice(DTYPES))
    base = torch.randn(rng.choice([64, 4096, 100_000]), device="cuda") * 3
    if dtype.is_floating_point:
        for _ in range(rng.choice([0, 0, 3])):
            base[rng.randrange(len(base))] = rng.choice([float("nan"), float("inf")])
    base = base.to(dtype) if dtype.is_floating_point else (base * 10).to(torch.int64).to(dtype)
    way = rng.choice(["plain", "offset", "transposed", "step", "expanded"])
    if way == "offset":
        return base[rng.randrange(8) :]
    if way == "transposed":
        return base[: len(base) // 32 * 32].reshape(32, -1).t()
    if way == "step":
        return base[::3]
    if way == "expanded":
        return base[:16].reshape(16, 1).expand(16, 5)
    return base


def _compare(view, arg):
    assert (arg.state, arg.reason) == ("materialized", None), (view.dtype, arg.reason)
    expected = view.to(torch.float64)
    finite = expected[expected.isfinite()]
    values = arg.values
    assert values.nan_count == int(expected.isnan().sum())
    assert values.posinf_count + values.neginf_count == int(expected.isinf().sum())
    assert values.zero_count == int((expected == 0).sum())
    if len(finite):
        assert (values.min, values.max) == (finite.min().item(), finite.max().item())
        assert values.mean == pytest.approx(finite.mean().item(), rel=1e-6, abs=1e-9)
    if len(finite) > 1:
        assert values.std == pytest.approx(finite.std().item(), rel=1e-6, abs=1e-9)


def test_outputs_are_the_untraced_ones_to_the_bit():
    """The model of two streams, traced and not, replayed three times."""
    at_launch_kernels.warmed(Model.on("cuda").run)
    outputs = []
    for traced in (False, True):
        model = Model.on("cuda")
        with at_launch() if traced else lazytrace.paused():
            graph = case_kernels.captured(model.run)
            for _ in range(3):
                graph.replay()
            torch.cuda.synchronize()
        outputs.append(model.out.cpu())
    assert torch.equal(*outputs)


def test_thousands_of_captured_launches_have_their_own_values():
    """Several graphs of a thousand launches: memory grows between captures, and none is lost."""
    x = torch.zeros(4096, device="cuda")
    at_launch_kernels.warmed(lambda: at_launch_kernels.bias_[(4,)](x, 4096, 1.0, -1, BLOCK=1024))
    with at_launch() as tracer:
        graphs = [
            case_kernels.captured(
                lambda: [
                    at_launch_kernels.bias_[(4,)](x, 4096, 1.0, -1, BLOCK=1024) for _ in range(1000)
                ]
            )
            for _ in range(6)
        ]
        x.zero_()
        for graph in graphs:
            graph.replay()
        torch.cuda.synchronize()
        records = tracer.records()
        problems = tracer.problems()
    assert problems == []
    assert [record.args["x"].values_after.max for record in records] == list(range(1, 6001))
    assert {record.args["x"].observed.replay for record in records} == {1}


def test_large_tensors_are_read_by_many_programs():
    """One NaN in the last element of 64 Mi, and the statistics of the rest."""
    x = torch.ones(1 << 26, device="cuda")
    x[-1] = float("nan")
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: double(x))
        graph.replay()
        torch.cuda.synchronize()
        (record,) = tracer.records()
        (problem,) = non_finite(tracer)
    assert (problem.index, problem.origin) == ((1 << 26) - 1, "came_in")
    assert (record.args["x"].values.nan_count, record.args["x"].values.mean) == (1, 1.0)
    assert record.args["x"].values_after.max == 2.0


def test_pinned_memory_is_not_read():
    """A kernel can address it; the probe leaves it alone and says so."""
    pinned, x = torch.ones(16).pin_memory(), torch.ones(16, device="cuda")
    with at_launch() as tracer:
        case_kernels.ignore[(1,)](pinned, x, 5)
        torch.cuda.synchronize()
        args = tracer.records()[0].args
    assert (args["x"].state, args["x"].reason) == ("skipped", "host_memory")
    assert args["y"].values.max == 1.0


def test_launches_on_the_legacy_stream_and_on_a_side_stream_are_read():
    """Each probe runs on its launch's own stream, behind what was submitted there."""
    x, y = (torch.zeros(1 << 20, device="cuda") for _ in range(2))
    double(x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with at_launch() as tracer:
        x.fill_(3.0)
        double(x)
        with torch.cuda.stream(side):
            y.fill_(5.0)
            double(y)
        torch.cuda.synchronize()
        first, second = tracer.records()
    assert (first.args["x"].values.max, first.args["x"].values_after.max) == (3.0, 6.0)
    assert (second.args["x"].values.max, second.args["x"].values_after.max) == (5.0, 10.0)


def test_a_graph_inside_another_runs_after_its_own_end():
    """The outer graph's copy of our nodes still writes to slots that are nobody else's."""
    x, y = (torch.ones(4096, device="cuda") for _ in range(2))
    double(x)
    with at_launch() as tracer:
        inner = kept(lambda: [double(x) for _ in range(4)])
        launch_outer = launch_inside_another(inner, times=3)
        inner.reset()
        tracer.records()
        later = case_kernels.captured(lambda: [double(y) for _ in range(4)])
        x.fill_(1.0)
        y.fill_(1.0)
        launch_outer()
        later.replay()
        torch.cuda.synchronize()
        records = tracer.records()[-4:]
    assert x[0].item() == 2.0**12
    assert [record.args["x"].values_after.max for record in records] == [2.0, 4.0, 8.0, 16.0]


def test_do_bench_cudagraph_works_and_every_launch_has_values():
    """The benchmark's own loop, under the tracer: slower, and right."""
    from triton.testing import do_bench_cudagraph

    x, out = torch.ones(4096, device="cuda"), torch.zeros(4096, device="cuda")
    calls = []

    def launch():
        calls.append(torch.cuda.is_current_stream_capturing())
        kernels.copy[(4,)](x, out, 4096, BLOCK=1024)

    with at_launch() as tracer:
        milliseconds = do_bench_cudagraph(launch, rep=2)
        torch.cuda.synchronize()
        captured = tracer.records(captured=True)
        eager = tracer.records(captured=False)
    assert milliseconds > 0
    assert (len(captured), len(eager)) == (calls.count(True), calls.count(False))
    assert captured
    assert {record.args["out"].values_after.max for record in captured} == {1.0}
    assert {record.args["x"].state.value for record in captured} == {"materialized"}
