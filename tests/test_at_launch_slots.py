"""The probes of a CUDA device, their kernel included, over memory of the host."""

from __future__ import annotations

import ctypes
import itertools
import struct
from contextlib import nullcontext

import attrs
import case_kernels
import kernels
import pytest
import torch
from at_launch_kernels import Model

import lazytrace
from lazytrace._device.cuda_driver import CudaError
from lazytrace._probes.cuda import CudaProbes
from lazytrace._probes.slots import CHUNK_BYTES, SlotBlock, Slots, _adjacent
from lazytrace._simulator.runtime import SimulatedRuntime, _region
from lazytrace._statistics.launch_engine import LaunchEngine
from lazytrace._statistics.launch_plan import ROW_WORDS, SLOT_WORDS, LaunchPlan

KERNEL = "lazytrace_launch_statistics"
SLOT = struct.Struct("<8q5d")
NO_INDEX = (1 << 63) - 1
OUT_OF_MEMORY = CudaError("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY")


@attrs.define
class HostDriver:
    """Device memory that is the host's; ``budget_bytes`` is what may be allocated in all."""

    budget_bytes: int = 1 << 30
    allocations: int = 0
    copies: int = 0
    broken: CudaError | None = None
    buffers: dict[int, ctypes.Array] = attrs.field(factory=dict)
    freed: list[ctypes.Array] = attrs.field(factory=list)

    def freed_untouched(self):
        return all(buffer.raw.strip(b"\xfe") == b"" for buffer in self.freed)

    def device_alloc(self, size_bytes):
        if size_bytes > self.budget_bytes:
            raise OUT_OF_MEMORY
        self.allocations += 1
        self.budget_bytes -= size_bytes
        return self.host_alloc(size_bytes)

    def host_alloc(self, size_bytes):
        buffer = ctypes.create_string_buffer(size_bytes)
        address = ctypes.addressof(buffer)
        self.buffers[address] = buffer
        return address

    def device_free(self, address):
        self.budget_bytes += len(self.buffers[address])
        self.host_free(address)

    def host_free(self, address):
        ctypes.memset(address, 0xFE, len(self.buffers[address]))
        self.freed.append(self.buffers.pop(address))  # kept: what still writes there is found out

    def copy_to_device(self, device, host, size_bytes, stream):
        self._copy(device, host, size_bytes)

    def copy_to_host(self, host, device, size_bytes, stream):
        self._copy(host, device, size_bytes)

    def _copy(self, to, source, size_bytes):
        if self.broken is not None:
            raise self.broken
        self.copies += 1
        ctypes.memmove(to, source, size_bytes)

    def stream_synchronize(self, stream):
        if self.broken is not None:
            raise self.broken


@attrs.frozen
class Node:
    """What the statistics kernel does with float32, in Python: it is slow in an interpreter.

    Where a tensor is stands in the launch's parameters, or in the rows in memory.
    """

    plan: LaunchPlan
    address: int
    name: str = KERNEL

    def run(self, device, poison):
        for tensor in range(self.plan.rows):
            self._run(tensor, device)

    def _run(self, tensor, device):
        slot = self.address + self.plan.slots_offset + tensor * SLOT_WORDS * 8
        replay, bad_replay, bad_index, *_ = SLOT.unpack(ctypes.string_at(slot, SLOT.size))
        with device.computing():
            values, index = self._values(tensor)
            finite = values[values.isfinite()]
            bad = index[~values.isfinite()]
            first = int(bad.min()) if len(bad) else NO_INDEX
            if len(bad) and not bad_replay:
                bad_replay, bad_index = replay + 1, first
            statistics = (
                int((values == 0).sum()),
                int(values.isnan().sum()),
                int((values == torch.inf).sum()),
                int((values == -torch.inf).sum()),
                first,
                float(finite.min()) if len(finite) else 0.0,
                float(finite.max()) if len(finite) else 0.0,
                float(finite.sum()),
                float(finite.square().sum()),
                0.0,
            )
        record = SLOT.pack(replay + 1, bad_replay, bad_index, *statistics)
        ctypes.memmove(slot, record, len(record))

    def _values(self, tensor):
        """The elements as float64, and their row-major indices."""
        if self.plan.inline:
            address, numel, code = self.plan.inline[tensor]
            dims = ()
        else:
            row = self.address + self.plan.rows_offset + tensor * ROW_WORDS * 8
            address, numel, code, rank, *words = struct.unpack("<24q", ctypes.string_at(row, 192))
            dims = tuple(zip(*[iter(words[2 : 2 + 3 * rank])] * 3, strict=True))
        assert code == 0
        offsets = index = torch.arange(numel)
        if dims:
            rest, offsets, index = index, 0, 0
            for size, stride, weight in dims:
                coordinate, rest = rest % size, rest // size
                offsets, index = offsets + coordinate * stride, index + coordinate * weight
        elements = [ctypes.c_float.from_address(address + 4 * int(o)).value for o in offsets]
        return torch.tensor(elements, dtype=torch.float64), index


@attrs.frozen
class Engine:
    """Enqueues such nodes in the simulation."""

    simulation: object

    def prepare(self):
        pass

    def launch(self, plan, address, stream):
        state = self.simulation.device.stream(stream)
        if state.capture is None:
            Node(plan, address).run(self.simulation.device, None)
        else:
            state.capture.add(state, Node(plan, address))


@attrs.frozen
class Runtime(SimulatedRuntime):
    """The simulation with a CUDA device's probes in place of its own."""

    host_driver: HostDriver = attrs.field(factory=HostDriver)
    most_bytes: int = 1 << 22
    engine_of: object = Engine

    def launch_probes(self):
        return CudaProbes(
            self.host_driver,
            lambda: 0,
            lambda device: nullcontext(),
            lambda device: 0,
            _region,
            engine=lambda device: self.engine_of(self.simulation),
            most_bytes=self.most_bytes,
        )


@pytest.fixture
def driver(simulated):
    """Puts CUDA's probes into the simulation, and gives their driver."""
    runtime = Runtime(simulated.simulation)
    simulated.simulation.driver.lazytrace_runtime = runtime
    return runtime.host_driver


def double(x):
    kernels.scale_[(1,)](x, x.numel(), 2.0, BLOCK=4)


def at_launch(**options):
    return lazytrace.trace(values="at_launch", **options)


def maxima(record, path="x"):
    arg = record.args[path]
    return (
        None if arg.values is None else arg.values.max,
        None if arg.values_after is None else arg.values_after.max,
    )


def non_finite(tracer):
    return [problem for problem in tracer.problems() if problem.kind == "non_finite"]


# The whole way, through the statistics kernel


def test_the_kernel_itself_fills_the_slots(simulated):
    """One launch of a strided and a plain tensor, read by the kernel that runs on a device."""
    runtime = Runtime(simulated.simulation, engine_of=lambda simulation: LaunchEngine())
    simulated.simulation.driver.lazytrace_runtime = runtime
    base, x = torch.arange(12.0).reshape(3, 4), torch.ones(4)
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: kernels.copy[(1,)](base.t()[1:], x, 4, BLOCK=4))
        graph.replay()
        simulated.synchronize()
        (record,) = tracer.records()
    values, left = record.args["x"].values, record.args["out"].values_after
    assert (values.min, values.max, values.mean) == (1.0, 11.0, base.t()[1:].mean().item())
    assert (left.min, left.max, record.args["out"].observed_after.replay) == (1.0, 4.0, 1)


def test_each_launch_is_read_on_every_replay(simulated, driver):
    """1, 2, 4, 8 on two replays."""
    x = torch.ones(4)
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: [double(x), double(x), double(x)])
        assert simulated.simulation.node_names(graph) == [KERNEL, "scale_", KERNEL] * 3
        for replay in (1, 2):
            x.fill_(1.0)
            graph.replay()
            simulated.synchronize()
            records = tracer.records()
            assert [maxima(record) for record in records] == [(1.0, 2.0), (2.0, 4.0), (4.0, 8.0)]
            assert {record.args["x"].observed.replay for record in records} == {replay}


def test_eager_launches_are_read_and_their_blocks_used_again(simulated, driver):
    """A hundred launches, a flush each ten: the memory does not grow."""
    x = torch.zeros(4)
    with at_launch() as tracer:
        allocations = driver.allocations
        for step in range(100):
            x.fill_(float(step))
            double(x)
            if step % 10 == 9:
                simulated.synchronize()
        records = tracer.records()
    assert [maxima(record) for record in records] == [(step, 2.0 * step) for step in range(100)]
    assert driver.allocations == allocations


def test_strided_views_are_read_by_rows_that_are_copied_after_the_capture(simulated, driver):
    """Nothing is copied inside the capture; the rows are there before the first replay."""
    base = torch.arange(12.0).reshape(3, 4)
    view, out = base.t()[1:], torch.zeros(4)
    with at_launch() as tracer:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            before = driver.copies
            case_kernels.ignore[(1,)](view, out, 5)
            assert driver.copies == before
        graph.replay()
        simulated.synchronize()
        (record,) = tracer.records()
    values = record.args["x"].values
    assert (values.min, values.max) == (1.0, 11.0)
    assert values.mean == view.mean().item()


def test_a_strided_view_of_an_eager_launch_is_read(simulated, driver):
    """Its rows travel on the launch's own stream."""
    base = torch.arange(12.0).reshape(3, 4)
    with at_launch() as tracer:
        case_kernels.ignore[(1,)](base.t()[1:], base, 5)
        (record,) = tracer.records()
    assert (record.args["x"].values.min, record.args["x"].values.max) == (1.0, 11.0)


def test_the_first_bad_replay_is_kept(simulated, driver):
    """The slot holds the number of the replay and the place of the element."""
    x = torch.ones(8)
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: kernels.scale_[(1,)](x, 8, 2.0, BLOCK=8))
        for bad in (None, 5, 3, None):
            x.fill_(1.0)
            if bad is not None:
                x[bad] = float("inf")
            graph.replay()
            simulated.synchronize()
        (problem,) = non_finite(tracer)
        (record,) = tracer.records()
    assert (problem.replay, problem.index, problem.origin) == (2, 5, "came_in")
    assert maxima(record) == (1.0, 2.0)
    assert record.args["x"].observed.replay == 4


@pytest.mark.parametrize("injected", [0, 7, 16, 23])
def test_the_launch_that_makes_a_nan_is_named(simulated, driver, injected):
    """The model's injected NaN, found by the kernel on both streams."""
    model = Model.on("cpu", injected)
    with at_launch() as tracer:
        graph = case_kernels.captured(model.run)
        graph.replay()
        simulated.synchronize()
        first = non_finite(tracer)[0]
        records = tracer.records()
    assert (first.launch, first.origin, first.index) == (records[injected].id, "made_here", 5)


# When something is missing


def test_memory_that_cannot_be_had_is_a_reason(simulated, driver):
    """The driver's error stands in the records, and the program goes on."""
    driver.budget_bytes = 0
    x = torch.ones(4)
    with at_launch() as tracer:
        double(x)
        (record,) = tracer.records()
        assert (record.args["x"].state, record.args["x"].reason) == (
            "skipped",
            "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY",
        )
        driver.budget_bytes = 1 << 30
        tracer.flush()
        double(x)
        assert maxima(tracer.records()[-1]) == (2.0, 4.0)
    assert x[0] == 4.0


def test_without_memory_to_grow_launches_are_skipped_and_counted(simulated):
    """What does not fit into the bound is no_slot, and given back blocks serve again."""
    most = 5 * CHUNK_BYTES  # the slots take two chunks, each capture or stream one more
    runtime = Runtime(simulated.simulation, most_bytes=most)
    simulated.simulation.driver.lazytrace_runtime = runtime
    x = torch.ones(4)
    with at_launch() as tracer:
        for _ in range(300):
            kernels.scale_[(1,)](x, 4, 1.0, BLOCK=4)
        states = [record.args["x"].reason for record in tracer.records()]
        assert states[:100] == [None] * 100
        assert states[-1] == "no_slot"
        skipped = states.count("no_slot")
        assert [p.message for p in tracer.problems()] == [f"{skipped} dropped: no_slot: values"]
        double(x)
        assert maxima(tracer.records()[-1]) == (1.0, 2.0)


def test_a_device_that_is_lost_fails_every_reading(simulated, driver):
    """One error, then everything left is failed with it, and nothing is raised."""
    x = torch.ones(4)
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: double(x))
        double(x)
        graph.replay()
        driver.broken = CudaError("cuMemcpyDtoHAsync_v2", 719, "CUDA_ERROR_LAUNCH_FAILED")
        simulated.synchronize()
        shown = [(r.args["x"].state, r.args["x"].reason) for r in tracer.records()]
        assert shown == [("failed", "cuMemcpyDtoHAsync_v2: CUDA_ERROR_LAUNCH_FAILED")] * 2
        assert {problem.kind.value for problem in tracer.problems()} <= {"non_finite"}


def test_rows_that_cannot_be_copied_leave_the_graph_harmless(simulated, driver):
    """The node then finds zeros and reads nothing; the values are skipped."""
    base, out = torch.arange(12.0).reshape(3, 4), torch.zeros(4)
    with at_launch() as tracer:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            case_kernels.ignore[(1,)](base.t()[1:], out, 5)
            driver.broken = CudaError("cuMemcpyHtoDAsync_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY")
        driver.broken = None
        graph.replay()
        simulated.synchronize()
        (record,) = tracer.records()
    assert (record.args["x"].state, record.args["x"].reason) == ("skipped", "not_settled")


# The end


def test_a_graph_that_outlives_the_tracer_keeps_its_memory(simulated, driver):
    """Its nodes write there on every replay, after disable() as before."""
    x = torch.ones(4)
    with at_launch():
        graph = case_kernels.captured(lambda: double(x))
        graph.replay()
        simulated.synchronize()
    graph.replay()
    assert driver.freed == []
    with at_launch() as tracer:
        double(x)
        simulated.synchronize()
        assert maxima(tracer.records()[0]) == (4.0, 8.0)
    graph.replay()
    assert driver.freed_untouched()
    assert x[0] == 16.0


def test_a_capture_that_outlives_the_tracer_gets_its_rows(simulated, driver):
    """disable() inside the capture: what the nodes need is copied when the capture ends."""
    base, out = torch.arange(12.0).reshape(3, 4), torch.zeros(4)
    lazytrace.enable(values="at_launch")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.copy[(1,)](base.t()[1:], out, 4, BLOCK=4)
        lazytrace.disable()
        before = driver.copies
    assert driver.copies > before
    graph.replay()
    assert driver.freed == []
    assert out.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_the_memory_is_freed_when_nothing_can_write_there(simulated, driver):
    """Eager launches were read and the graphs are gone: enabling again and again costs nothing."""
    x = torch.ones(4)
    for _ in range(3):
        with at_launch():
            double(x)
            graph = case_kernels.captured(lambda: double(x))
            graph.replay()
            simulated.synchronize()
            del graph
        assert driver.buffers == {}
    assert driver.budget_bytes == 1 << 30
    assert driver.freed_untouched()


def test_a_graph_whose_handle_was_shown_keeps_its_slots(simulated, driver):
    """The program may have made another graph from it, which runs after this one is gone."""
    x = torch.ones(4)
    with at_launch() as tracer:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            double(x)
        graph.raw_cuda_graph()
        del graph
        tracer.flush()
    assert driver.freed == []


# The slots themselves


def slots(budget=1 << 30, most=1 << 21):
    driver = HostDriver(budget)
    held = Slots(driver, 0, most)
    return held, driver


def test_blocks_are_zero_distinct_and_large_enough():
    """Each block is its own, and is zero also when it was used before."""
    held, _ = slots()
    held.grow()
    taken = [held.take(size) for size in (1, 512, 513, 1000, 5000, CHUNK_BYTES)]
    assert [block.size_bytes for block in taken] == [512, 512, 1024, 1024, 8192, CHUNK_BYTES]
    spans = sorted((block.device, block.device + block.size_bytes) for block in taken)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for block in taken:
        ctypes.memset(block.device, 255, block.size_bytes)
        held.release(block)
    held.clean()
    seen = {}
    while (block := held.take(512)) is not None:
        seen[block.device] = ctypes.string_at(block.device, 512)
    assert len(seen) > 100
    assert set(seen.values()) == {bytes(512)}


def test_a_block_can_be_taken_again_only_after_it_was_cleaned():
    """What was given back is not zero yet."""
    held, _ = slots(most=CHUNK_BYTES)
    held.grow()
    block = held.take(CHUNK_BYTES)
    held.release(block)
    assert held.take(CHUNK_BYTES) is None
    held.clean()
    assert held.take(CHUNK_BYTES) == block


def test_growth_doubles_up_to_the_bound():
    """At the bound there is no more; too large a block is refused."""
    held, driver = slots(most=40 << 20)
    assert held.is_low
    sizes = [(held.grow(), held.total_bytes >> 20) for _ in range(4)]
    assert sizes == [(True, 16), (True, 32), (True, 40), (False, 40)]
    assert driver.allocations == 3
    assert held.take(CHUNK_BYTES + 1) is None


def test_a_failed_growth_leaves_everything_as_it_was():
    """The error passes on; device memory that was allocated is freed."""
    held, driver = slots(most=1 << 26)
    held.grow()
    driver.broken = OUT_OF_MEMORY
    budget = driver.budget_bytes
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        held.grow()
    assert (driver.budget_bytes, held.total_bytes) == (budget, 16 << 20)


def test_reading_brings_neighbours_in_one_copy():
    """Parts come back in the order asked for, whatever their addresses are."""
    held, driver = slots()
    held.grow()
    blocks = [held.take(512) for _ in range(64)]
    for number, block in enumerate(blocks):
        ctypes.memset(block.device + 8, number, 16)
    copies = driver.copies
    parts = [block.part(8, 16) for block in reversed(blocks)]
    assert held.read(parts) == [bytes([number]) * 16 for number in reversed(range(64))]
    assert driver.copies == copies + 1


def test_no_copy_reaches_from_one_allocation_into_the_next():
    """Two slabs may be neighbours in memory, and are two allocations all the same."""
    parts = [SlotBlock(address, 0, 512) for address in (1536, 1024, 2048, 2560)]
    groups = list(_adjacent(parts, [0, 2048], 1 << 16))
    assert [[part.device for part in group] for group in groups] == [[1024, 1536], [2048, 2560]]


def test_a_launch_with_many_tensors_is_one_node(simulated, driver):
    """Rows beyond the few that fit into parameters are in memory: a tuple of 20 tensors."""
    tensors = tuple(torch.full((4,), float(number)) for number in range(20))
    with at_launch() as tracer:
        graph = case_kernels.captured(lambda: case_kernels.ignore[(1,)](tensors, tensors[0], 5))
        graph.replay()
        simulated.synchronize()
        (record,) = tracer.records()
        names = simulated.simulation.node_names(graph)
    assert names.count(KERNEL) <= 2
    assert [record.args[f"x[{number}]"].values.max for number in range(20)] == list(range(20))
