"""How fast are statistics of device memory, beside a plain copy and beside torch's operators?

Prints ratios of one run: the deferred engine over contiguous memory, over many small tensors,
and the node that ``values="at_launch"`` adds to each captured launch.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from lazytrace._device.cuda_driver import CudaDriver
from lazytrace._statistics import Region
from lazytrace._statistics.device_engine import DeviceEngine
from lazytrace._statistics.launch_engine import LaunchEngine
from lazytrace._statistics.launch_plan import LaunchPlan, plan_launch

GIB = 1 << 30
DTYPES = [
    *("float32", "float64", "int32", "int64", "bfloat16", "float16"),
    *("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool", "complex64"),
]


class TimedDriver:
    """The driver; events around all that a read enqueues."""

    def __init__(self, driver: CudaDriver, stream: int) -> None:
        self._driver = driver
        self._stream = torch.cuda.ExternalStream(stream)
        self.spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def copy_to_device(self, *args: int) -> None:
        events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.spans.append(events)
        events[0].record(self._stream)
        self._driver.copy_to_device(*args)

    def copy_to_host(self, *args: int) -> None:
        self._driver.copy_to_host(*args)
        self.spans[-1][1].record(self._stream)


def region(tensor: torch.Tensor) -> Region:
    return Region(
        tensor.data_ptr(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        str(tensor.dtype).removeprefix("torch."),
        tensor.element_size(),
    )


def milliseconds(work: Callable[[], object], repeats: int = 7) -> float:
    work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def reading(engine: DeviceEngine, timed: TimedDriver, stream: int, regions: list[Region]) -> float:
    """Milliseconds on the device from the first copy to the last of one read."""
    torch.cuda.synchronize()
    times = []
    for _ in range(7):
        timed.spans.clear()
        engine.read(regions, stream)
        times.append(sum(start.elapsed_time(end) for start, end in timed.spans))
    return statistics.median(times)


def numbers(dtype: str, size_bytes: int) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if kind.is_floating_point or kind.is_complex:
        source = torch.randn(1 << 26, device="cuda").to(kind)
    else:
        source = torch.randint(0, 100, (1 << 26,), device="cuda").to(kind)
    return source.repeat(size_bytes // source.nbytes)


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = tl.load(x_ptr + offsets, mask=inside) + tl.load(y_ptr + offsets, mask=inside)
    tl.store(out_ptr + offsets, total, mask=inside)


def block_of(plan: LaunchPlan) -> torch.Tensor:
    block = torch.zeros(plan.size_bytes, dtype=torch.uint8, device="cuda")
    image = torch.frombuffer(bytearray(plan.image), dtype=torch.uint8)
    block[: len(plan.image)].copy_(image)
    return block


def launch_microseconds(engine: LaunchEngine | None, size_bytes: int, launches: int) -> float:
    """One launch of an addition of three tensors in a graph, with its node or without."""
    n = size_bytes // 4
    tensors = [torch.randn(n, device="cuda") for _ in range(3)]
    plan = plan_launch([region(tensor) for tensor in tensors])
    block = block_of(plan)
    stream = torch.cuda.Stream()

    def launch() -> None:
        if engine is not None:
            engine.launch(plan, block.data_ptr(), stream.cuda_stream)
        add[(triton.cdiv(n, 1024),)](*tensors, n, BLOCK=1024)

    with torch.cuda.stream(stream):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(launches):
            launch()
    return milliseconds(graph.replay) * 1e3 / launches


def copy_rate(size_bytes: int) -> float:
    """TB/s of a copy on the device, counting what is read and what is written."""
    source = torch.empty(size_bytes, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * size_bytes / milliseconds(lambda: target.copy_(source)) / 1e9


def bandwidth(engine: DeviceEngine, timed: TimedDriver, stream: int, size_bytes: int) -> None:
    copy = copy_rate(size_bytes)
    print(f"device-to-device copy, read and written: {copy:.2f} TB/s")
    print(f"{'dtype':14} {'GiB':>5} {'ms':>8} {'TB/s':>6} {'over copy':>9}")
    for dtype in DTYPES:
        memory = numbers(dtype, size_bytes)
        time = reading(engine, timed, stream, [region(memory)])
        rate = memory.nbytes / time / 1e9
        gib = memory.nbytes / GIB
        print(f"{dtype:14} {gib:5.1f} {time:8.3f} {rate:6.2f} {rate / copy:9.2f}")


def against_torch(engine: DeviceEngine, timed: TimedDriver, stream: int, size_bytes: int) -> None:
    memory = numbers("bfloat16", size_bytes)

    def operators() -> list[torch.Tensor]:
        wide = memory.float()
        return [wide.min(), wide.max(), wide.mean(), wide.std()]

    theirs = milliseconds(operators, 3)
    ours = reading(engine, timed, stream, [region(memory)])
    print(
        f"{memory.nbytes / GIB:.1f} GiB of bfloat16: .float() + min + max + mean + std "
        f"{theirs:.2f} ms, here {ours:.2f} ms: {theirs / ours:.1f} times faster"
    )


def small(engine: DeviceEngine, timed: TimedDriver, stream: int) -> None:
    tensors = [torch.randn(1024, device="cuda") for _ in range(1000)]
    time = reading(engine, timed, stream, [region(tensor) for tensor in tensors])
    print(f"1,000 tensors of 4 KiB, copies included: {time * 1e3:.0f} us on the device")


def nodes() -> None:
    engine = LaunchEngine()
    engine.prepare()
    print(f"{'3 tensors of':>12} {'bare us':>8} {'with node':>9} {'node':>6}")
    for size_bytes, launches in ((64 << 10, 1000), (4 << 20, 200), (256 << 20, 5)):
        bare = launch_microseconds(None, size_bytes, launches)
        both = launch_microseconds(engine, size_bytes, launches)
        print(f"{size_bytes >> 10:8} KiB {bare:8.2f} {both:9.2f} {both - bare:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4.0, help="memory of each dtype's tensor")
    size_bytes = int(parser.parse_args().gib * GIB)
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    driver = CudaDriver.load()
    if driver is None:
        raise SystemExit("no CUDA driver")
    stream = driver.stream_create()
    timed = TimedDriver(driver, stream)
    engine = DeviceEngine(timed, 0)
    engine.prepare(DTYPES)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    bandwidth(engine, timed, stream, size_bytes)
    against_torch(engine, timed, stream, size_bytes)
    small(engine, timed, stream)
    nodes()


if __name__ == "__main__":
    main()
