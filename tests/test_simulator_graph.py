"""Simulated graphs: what a replay computes, on which memory, and what keeps nothing alive."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import kernels
import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from lazytrace.testing import simulate

pytestmark = pytest.mark.core

PREVIOUS_ERROR = "previous error during capture"


@pytest.fixture
def simulation():
    with simulate() as running:
        yield running


@pytest.fixture
def graph(simulation):
    return torch.cuda.CUDAGraph()


def scale(x, factor=2.0):
    kernels.scale_[(1,)](x, x.numel(), factor, BLOCK=128)


def copy(x, out):
    kernels.copy[(1,)](x, out, x.numel(), BLOCK=128)


def test_capture_records_and_replay_runs(simulation, graph):
    """Nothing runs in the capture; each replay runs the nodes in order on the same memory."""
    x, out = torch.ones(4), torch.zeros(4)
    with torch.cuda.graph(graph):
        scale(x, 3.0)
        copy(x, out)
        out.add_(1)
    assert (x.tolist(), out.tolist()) == ([1.0] * 4, [0.0] * 4)
    graph.replay()
    assert (x.tolist(), out.tolist()) == ([3.0] * 4, [4.0] * 4)
    x.fill_(10.0)
    graph.replay()
    assert (x.tolist(), out.tolist()) == ([30.0] * 4, [31.0] * 4)
    assert simulation.node_names(graph) == ["scale_", "copy", "aten.add_.Tensor"]


def test_temporaries_survive_for_the_replay(graph):
    """A tensor made in the capture dies with its name; its bytes stay with the graph."""
    x, out = torch.arange(4.0), torch.zeros(4)
    with torch.cuda.graph(graph):
        first = torch.empty_like(x)
        copy(x, first)
        second = first * 10
        storage = weakref.ref(first.untyped_storage())
        copy(second, out)
        del first, second
    gc.collect()
    assert storage() is None
    graph.replay()
    assert out.tolist() == [0.0, 10.0, 20.0, 30.0]


def test_output_of_a_capture_is_filled_by_the_replay(graph):
    """A kept result reads as poison before the first replay and is right after it."""
    x = torch.arange(4.0)
    with torch.cuda.graph(graph):
        out = x + 1
    assert out.isnan().all()
    graph.replay()
    assert out.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_graph_holds_no_storage_of_the_user(graph):
    """Inputs die when the user drops them, although the graph has nodes on them."""
    x, out = torch.ones(4), torch.zeros(4)
    storage = weakref.ref(x.untyped_storage())
    with torch.cuda.graph(graph):
        scale(x)
        out.add_(x)
    del x
    gc.collect()
    assert storage() is None


def test_freed_input_reads_poison(graph):
    """A replay on a dead input sees NaN, the same at every replay, and never freed memory."""
    x, out = torch.ones(4), torch.zeros(4)
    with torch.cuda.graph(graph):
        copy(x, out)
        scale(x)
        copy(x, out[:4])
    graph.replay()
    assert out.tolist() == [2.0] * 4
    del x
    for _ in range(2):
        out.zero_()
        graph.replay()
        assert out.isnan().all()


def test_freed_operand_of_a_torch_operation_reads_poison(graph):
    """Torch operations resolve their operands at the replay, too."""
    x, out = torch.ones(4), torch.zeros(4)
    with torch.cuda.graph(graph):
        out.copy_(x)
    del x
    graph.replay()
    assert out.isnan().all()


def test_moved_and_shrunk_storages_are_dead(graph):
    """``.data = new`` and ``resize_(0)`` leave the captured memory behind."""
    moved, shrunk = torch.ones(4), torch.ones(4)
    outs = torch.zeros(4), torch.zeros(4)
    with torch.cuda.graph(graph):
        copy(moved, outs[0])
        copy(shrunk, outs[1])
    moved.data = torch.zeros(4)
    shrunk.untyped_storage().resize_(0)
    graph.replay()
    assert outs[0].isnan().all()
    assert outs[1].isnan().all()


def test_freed_descriptor_base_and_tuple_items_read_poison(graph):
    """Tensors inside descriptors and tuples are held weakly as well."""
    base, tile = torch.ones(16, 16), torch.zeros(16, 16)
    left, out = torch.ones(8), torch.zeros(8)
    with torch.cuda.graph(graph):
        descriptor = TensorDescriptor.from_tensor(base, [16, 16])
        kernels.doubled_tile[(1,)](descriptor, tile, ROWS=16, COLUMNS=16)
        kernels.weighted_sum[(1,)]((left, left), out, (2.0, 3.0), 8, BLOCK=8)
    graph.replay()
    assert tile.eq(2.0).all()
    assert out.tolist() == [5.0] * 8
    del base, descriptor, left
    graph.replay()
    assert tile.isnan().all()
    assert out.isnan().all()


def test_views_and_offsets_are_kept(graph):
    """A node on a strided view writes that view only."""
    x = torch.zeros(4, 4)
    with torch.cuda.graph(graph):
        x[1:3, ::2].add_(1)
        copy(torch.ones(4), x[3])
    graph.replay()
    assert x.tolist() == [[0.0] * 4, [1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0] * 4]


OPERATIONS = {
    "functional": lambda x: x * 2 + 1,
    "factory": lambda x: torch.zeros(4) + x,
    "full": lambda x: torch.full((4,), 3.0) * x,
    "arange": lambda x: torch.arange(4, dtype=torch.float32) + x,
    "out": lambda x: torch.add(x, 1, out=torch.empty(4)),
    "several results": lambda x: torch.cat(torch.sort(x, descending=True)),
    "split": lambda x: torch.cat(x.split(2)[::-1]),
    "foreach": lambda x: torch._foreach_add([x, x], 1.0)[1],
    "foreach in place": lambda x: (torch._foreach_mul_([x], 2.0), x + 0)[1],
    "reshape of a transposed": lambda x: x.view(2, 2).t().reshape(4),
    "softmax": lambda x: x.softmax(0),
    "linear": lambda x: torch.nn.functional.linear(x, torch.ones(3, 4)),
    "indexing by a captured index": lambda x: x[torch.arange(4) - 4],
    "in-place views": lambda x: (x + 0).unsqueeze_(0).t_(),
    "assignment by index": lambda x: (x + 0).index_put_((torch.arange(2),), torch.ones(2)),
    "where": lambda x: torch.where(x > 1, x, -x),
    "batch norm": lambda x: torch.nn.functional.batch_norm(
        x.view(4, 1), torch.zeros(1), torch.ones(1), training=True
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_torch_operations_replay_to_the_eager_result(graph, name):
    """Operations recorded as nodes give, on new input, what they give eagerly."""
    operation = OPERATIONS[name]
    x = torch.zeros(4)
    with torch.cuda.graph(graph):
        result = operation(x)
    values = torch.tensor([3.0, 0.0, 2.0, 5.0])
    x.copy_(values)
    graph.replay()
    assert torch.equal(result, operation(values.clone()))


def test_views_and_allocations_add_no_node(simulation, graph):
    """Only what a GPU would run is a node."""
    x = torch.ones(4)
    with torch.cuda.graph(graph):
        torch.empty(3)
        x.view(2, 2).t()[1:].detach()
    assert simulation.nodes(graph) == 0


def test_gradients_can_be_captured(graph):
    """A captured forward and backward accumulate into the parameter at each replay."""
    weight = torch.ones(4, requires_grad=True)
    weight.grad = torch.zeros(4)
    x = torch.arange(4.0)
    with torch.cuda.graph(graph):
        (weight * x).sum().backward()
    graph.replay()
    graph.replay()
    assert weight.grad.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_graph_memory_is_listed(simulation, graph):
    """graph_ranges and the snapshot know the pool; outside memory is in neither."""
    x = torch.ones(4)
    with torch.cuda.graph(graph):
        inside = x + 1
    ((start, end),) = simulation.graph_ranges(graph)
    assert start <= inside.data_ptr() < end
    assert not start <= x.data_ptr() < end
    assert inside.data_ptr() % 512 == 0
    expected = [
        {"device": 0, "address": start, "total_size": end - start, "segment_pool_id": graph.pool()}
    ]
    assert torch.cuda.memory_snapshot(graph.pool()) == expected
    assert torch.cuda.memory_snapshot() == expected
    assert torch.cuda.memory_snapshot((7, 7)) == []


def test_pool_dies_with_its_graph(simulation, graph):
    """Without a graph a private pool is gone, but a tensor in it keeps its own bytes."""
    x = torch.ones(4)
    with torch.cuda.graph(graph):
        inside = x + 1
    graph.replay()
    graph.reset()
    assert torch.cuda.memory_snapshot() == []
    assert simulation.graph_ranges(graph) == []
    assert inside.tolist() == [2.0] * 4


@pytest.mark.parametrize("by_handle", [True, False])
def test_shared_pool(simulation, by_handle):
    """A second graph finds the first one's output in their pool, though nobody refers to it."""
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    x, out = torch.ones(4), torch.zeros(4)
    with torch.cuda.graph(first, pool=torch.cuda.graph_pool_handle() if by_handle else None):
        between = x * 3
    with torch.cuda.graph(second, pool=first.pool()):
        copy(between, out)
    assert first.pool() == second.pool()
    assert simulation.graph_ranges(first) == simulation.graph_ranges(second)
    del between
    first.replay()
    second.replay()
    assert out.tolist() == [3.0] * 4


def test_graph_dies_when_dropped(simulation):
    """Neither the simulation nor a torch operation holds a graph."""
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(4)
    with torch.cuda.graph(graph):
        scale(x)
        x.add_(1)
    dead = weakref.ref(graph)
    del graph
    gc.collect()
    assert dead() is None


def test_recapture_needs_a_reset(graph):
    """A graph that was captured refuses another capture until it is reset."""
    x = torch.ones(4)
    with torch.cuda.graph(graph):
        scale(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            graph.capture_begin()
        graph.reset()
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()
        graph.capture_begin()
        scale(x, 5.0)
        graph.capture_end()
    graph.replay()
    assert x.tolist() == [5.0] * 4


def test_failed_capture_leaves_the_capture_stream_current(simulation, graph):
    """As with torch's own context manager, which a later capture survives."""
    x = torch.ones(4)
    before = torch.cuda.current_stream()

    def fail():
        with torch.cuda.graph(graph):
            scale(x)
            x.tolist()

    with pytest.raises(RuntimeError, match=PREVIOUS_ERROR):
        fail()
    assert torch.cuda.current_stream() != before
    assert not torch.cuda.is_current_stream_capturing()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    torch.cuda.set_stream(before)
    with torch.cuda.graph(graph):
        scale(x)
    graph.replay()
    assert x.tolist() == [2.0] * 4


def test_exception_in_the_body_comes_out_unchanged(graph):
    """A user's exception that broke no rule passes, and the stream is put back."""
    before = torch.cuda.current_stream()

    def fail():
        with torch.cuda.graph(graph):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert torch.cuda.current_stream() == before


def test_default_stream_cannot_be_captured(graph):
    """CUDA refuses to capture the legacy stream."""
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        graph.capture_begin()
    assert not torch.cuda.is_current_stream_capturing()


def test_unknown_mode_is_refused(graph):
    """A capture mode that CUDA does not have is an error before anything starts."""
    with torch.cuda.stream(torch.cuda.Stream()):
        with pytest.raises(RuntimeError, match="Unknown capture error mode"):
            graph.capture_begin(capture_error_mode="lenient")
        assert not torch.cuda.is_current_stream_capturing()


def test_capture_ends_on_its_own_stream(graph):
    """Ending elsewhere is an error and leaves the capture open."""
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        with torch.cuda.Stream(), pytest.raises(RuntimeError, match="same stream it began on"):
            graph.capture_end()
        graph.capture_end()
    graph.replay()


def test_foreign_capture_bypasses_the_shims(simulation):
    """torch._C._CUDAGraph captures without a method of torch.cuda.CUDAGraph being called."""
    x = torch.ones(4)
    foreign = torch._C._CUDAGraph()
    assert issubclass(torch.cuda.CUDAGraph, torch._C._CUDAGraph)
    assert not isinstance(foreign, torch.cuda.CUDAGraph)
    for name in ("capture_begin", "capture_end", "replay", "reset", "instantiate", "pool"):
        assert name in vars(torch.cuda.CUDAGraph)
    with torch.cuda.stream(torch.cuda.Stream()):
        foreign.capture_begin()
        assert torch.cuda.is_current_stream_capturing()
        scale(x)
        foreign.capture_end()
    foreign.replay()
    assert simulation.node_names(foreign) == ["scale_"]
    assert x.tolist() == [2.0] * 4


def test_kept_graph_is_instantiated_by_its_replay(simulation):
    """With keep_graph=True there is a graph handle at once, an executable one on demand."""
    x = torch.ones(4)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        scale(x)
    assert graph.raw_cuda_graph() != 0
    with pytest.raises(RuntimeError, match="before instantiate"):
        graph.raw_cuda_graph_exec()
    graph.replay()
    assert graph.raw_cuda_graph_exec() != 0
    assert x.tolist() == [2.0] * 4
    plain = torch.cuda.CUDAGraph()
    with torch.cuda.graph(plain):
        scale(x)
    with pytest.raises(RuntimeError, match="keep_graph"):
        plain.raw_cuda_graph()


def test_replay_into_a_capture_is_a_child(simulation, graph):
    """The inner graph becomes one node, which outlives it."""
    x = torch.ones(4)
    with torch.cuda.graph(graph):
        scale(x)
    outer = torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        graph.replay()
        x.add_(1)
    assert x.tolist() == [1.0] * 4
    assert simulation.node_names(outer) == ["child graph", "aten.add_.Tensor"]
    graph.reset()
    outer.replay()
    assert x.tolist() == [3.0] * 4


def test_replay_advances_the_clock_by_the_users_kernels(simulation, graph):
    """Every kernel node takes kernel_ms, a torch operation nothing."""
    x = torch.ones(4)
    with torch.cuda.graph(graph):
        scale(x)
        x.add_(1)
        scale(x)
    assert simulation.clock_ms == 0.0
    graph.replay()
    assert simulation.clock_ms == 2.0
    assert simulation.launches == 2


def test_a_node_is_small(graph):
    """10,000 captured launches take far less than 5 KB each."""
    x, out = torch.ones(4), torch.zeros(4)
    copy(x, out)
    with torch.cuda.graph(graph):
        copy(x, out)
        tracemalloc.start()
        for _ in range(1000):
            copy(x, out)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert used / 1000 < 2500
