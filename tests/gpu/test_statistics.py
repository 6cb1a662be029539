"""The device engine and the launch nodes on a GPU, against element-by-element statistics."""

from __future__ import annotations

import random

import attrs
import pytest
import torch
from conftest import needs_gpu
from statistics_cases import DTYPES, difference, reference, region_of, view

from lazytrace._device.cuda_driver import CudaDriver
from lazytrace._statistics import Region
from lazytrace._statistics.device_engine import DeviceEngine
from lazytrace._statistics.launch_engine import LaunchEngine
from lazytrace._statistics.launch_plan import LaunchPlan, SlotReading, decode_slots, plan_launch
from lazytrace.records import TensorStats

pytestmark = [
    pytest.mark.gpu,
    needs_gpu,
    # torch warns once that its complex32 is experimental: the cases are views of such memory.
    pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning"),
]

CASES = 1050


@pytest.fixture(scope="module")
def stream() -> int:
    torch.zeros(1, device="cuda")
    driver = CudaDriver.load()
    assert driver is not None
    return driver.stream_create()


@pytest.fixture(scope="module")
def engine() -> DeviceEngine:
    torch.zeros(1, device="cuda")
    driver = CudaDriver.load()
    assert driver is not None
    return DeviceEngine(driver, 0)


@attrs.frozen(eq=False)
class Case:
    """A view in host memory, and the same one in device memory."""

    host: torch.Tensor
    memory: torch.Tensor
    region: Region

    @classmethod
    def of(cls, host: torch.Tensor) -> Case:
        storage = host.untyped_storage()
        memory = torch.empty(0, dtype=torch.uint8).set_(storage).cuda()
        offset = host.data_ptr() - storage.data_ptr() if host.numel() else 0
        region = attrs.evolve(region_of(host), data_ptr=memory.data_ptr() + offset)
        return cls(host, memory, region)

    def problem(self, found: TensorStats | Exception) -> str:
        integral = not (self.host.is_floating_point() or self.host.is_complex())
        return difference(found, reference(self.host), integral)


def cases(count: int, most: int) -> list[Case]:
    rng = random.Random(count)
    views = [view(rng, DTYPES[number % len(DTYPES)], most) for number in range(count)]
    made = [Case.of(host) for host in views]
    torch.cuda.synchronize()
    return made


@pytest.mark.parametrize("programs", [4, 1056])
def test_random_views_have_the_reference_statistics(
    engine: DeviceEngine, stream: int, programs: int
) -> None:
    """1,050 views over all dtypes, long and short ranges; torch's allocator is not used."""
    made = cases(CASES, 30_000)
    engine.prepare(DTYPES)
    before = torch.cuda.memory_stats()
    limited = attrs.evolve(engine, max_programs=programs)
    found = limited.read([case.region for case in made], stream)
    assert torch.cuda.memory_stats() == before
    wrong = [
        problem for case, stats in zip(made, found, strict=True) if (problem := case.problem(stats))
    ]
    assert wrong == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_large_views_agree_with_double_precision(
    engine: DeviceEngine, stream: int, dtype: str
) -> None:
    """64 MiB through the bulk kernels, a NaN near the end, an unaligned start."""
    size = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    wide = torch.randn((64 << 20) // size, device="cuda") * 3 + 20
    tensor = wide.to(getattr(torch, dtype))[1:]
    if tensor.is_floating_point():
        tensor.view(torch.uint8)[-8:] = 0xFF
    values = tensor.double()
    finite = values[values.isfinite()]
    torch.cuda.synchronize()
    region = attrs.evolve(region_of(tensor), dtype=dtype)
    (found,) = engine.read([region], stream)
    assert isinstance(found, TensorStats)
    assert (found.min, found.max) == (float(finite.min()), float(finite.max()))
    assert found.mean == pytest.approx(float(finite.mean()), abs=1e-5)
    assert found.std == pytest.approx(float(finite.std()), rel=2e-6)
    assert found.zero_count == int((values == 0).sum())
    bad = (~values.isfinite()).nonzero()
    assert found.first_nonfinite_index == (int(bad[0]) if len(bad) else None)


def test_more_elements_than_32_bits_count(engine: DeviceEngine, stream: int) -> None:
    """A marker in the last of 2 ** 31 + 77 bytes is found, contiguous and expanded."""
    tensor = torch.zeros((1 << 31) + 77, dtype=torch.int8, device="cuda")
    tensor[-1] = 5
    torch.cuda.synchronize()
    whole, wide, others = engine.read(
        [region_of(tensor), region_of(tensor.expand(3, -1)), region_of(tensor[1::2])], stream
    )
    assert isinstance(whole, TensorStats)
    assert isinstance(wide, TensorStats)
    assert (whole.max, whole.mean, whole.zero_count) == (5, 5 / tensor.numel(), tensor.numel() - 1)
    assert (wide.max, wide.zero_count) == (5, 3 * (tensor.numel() - 1))
    assert others == TensorStats(0, 0, 0.0, 0.0, zero_count=tensor.numel() // 2)


def block_of(plan: LaunchPlan) -> torch.Tensor:
    block = torch.zeros(plan.size_bytes, dtype=torch.uint8, device="cuda")
    block[: len(plan.image)].copy_(torch.frombuffer(bytearray(plan.image), dtype=torch.uint8))
    return block


def slots_of(plan: LaunchPlan, block: torch.Tensor) -> list[SlotReading | Exception]:
    torch.cuda.synchronize()
    slots = block[plan.slots_offset : plan.slots_offset + plan.slot_bytes]
    return decode_slots(plan, bytes(slots.cpu().numpy()))


def test_nodes_read_mixed_launches_and_count_their_runs() -> None:
    """Five tensors of different dtypes a node, each run three times."""
    made = cases(CASES // 2, 20_000)
    nodes = LaunchEngine()
    nodes.prepare()
    stream = torch.cuda.current_stream().cuda_stream
    wrong = []
    for start in range(0, len(made), 5):
        some = made[start : start + 5]
        plan = plan_launch([case.region for case in some])
        if not plan.rows:
            continue
        block = block_of(plan)
        for _ in range(3):
            nodes.launch(plan, block.data_ptr(), stream)
        for case, reading in zip(some, slots_of(plan, block), strict=True):
            assert isinstance(reading, SlotReading)
            assert reading.replay == (3 if case.host.numel() else 0)
            # Squares of float64 beyond its range are stated as missing.
            if case.host.dtype is torch.float64 and reading.stats.std is None:
                continue
            wrong.append(case.problem(reading.stats))
    assert [problem for problem in wrong if problem] == []


def test_captured_nodes_see_each_launch_and_keep_the_first_bad_replay() -> None:
    """x *= 2 four times in a graph; on the second replay an element is infinite from the start."""
    nodes = LaunchEngine()
    nodes.prepare()
    x = torch.ones(1 << 14, device="cuda")
    plan = plan_launch([region_of(x)])
    blocks = [block_of(plan) for _ in range(4)]
    x.mul_(2)
    torch.cuda.synchronize()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for block in blocks:
            nodes.launch(plan, block.data_ptr(), stream.cuda_stream)
            x.mul_(2)
    seen = []
    for replay in (1, 2, 3):
        x.fill_(1)
        x[77] = torch.inf if replay == 2 else 1
        graph.replay()
        readings = [slots_of(plan, block)[0] for block in blocks]
        assert all(isinstance(reading, SlotReading) for reading in readings)
        seen.append(
            [(r.stats.max, r.replay, r.first_bad_replay, r.first_bad_index) for r in readings]
        )
    assert seen[0] == [(maximum, 1, None, None) for maximum in (1.0, 2.0, 4.0, 8.0)]
    assert seen[1] == [(maximum, 2, 2, 77) for maximum in (1.0, 2.0, 4.0, 8.0)]
    assert seen[2] == [(maximum, 3, 2, 77) for maximum in (1.0, 2.0, 4.0, 8.0)]
