"""A DeviceEngine over host memory: Triton's interpreter runs the kernels (TRITON_INTERPRET=1).

Run as a script, it compares random views with the reference and prints what differs.
"""

from __future__ import annotations

import ctypes
import random
import sys
import warnings
from typing import Any

import attrs
import torch
from statistics_cases import DTYPES, difference, memory, reference, region_of, view

from lazytrace._statistics.compiled import Stages, stages_of
from lazytrace._statistics.device_engine import DeviceEngine

_WITHOUT_FLOAT8 = 80  # the decoding by hand, which the interpreter can run


@attrs.define
class HostDriver:
    """The driver's memory calls on plain host memory; counts the waits."""

    blocks: list[Any] = attrs.field(factory=list)
    waits: int = 0

    def device_alloc(self, size_bytes: int) -> int:
        self.blocks.append(ctypes.create_string_buffer(size_bytes))
        return ctypes.addressof(self.blocks[-1])

    host_alloc = device_alloc

    def copy_to_device(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        ctypes.memmove(device, host, size_bytes)

    def copy_to_host(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        ctypes.memmove(host, device, size_bytes)

    def stream_synchronize(self, stream: int) -> None:
        self.waits += 1


@attrs.define
class InterpretedKernels:
    """Runs a stage in the interpreter; counts the launches."""

    launches: int = 0

    def prepare(self, dtype: str) -> Stages:
        return stages_of(dtype, _WITHOUT_FLOAT8)

    def launch(
        self, dtype: str, is_bulk: bool, programs: int, stream: int, addresses: tuple[int, int, int]
    ) -> None:
        stages = self.prepare(dtype)
        stage = stages.bulk if is_bulk else stages.exact
        assert stage is not None
        self.launches += 1
        stage.kernel[(programs,)](*addresses, **stage.constants)


def main(seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    # NumPy warns of the overflows and NaN that the cases are about.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    kernels = InterpretedKernels()
    driver = HostDriver()
    engine = DeviceEngine(driver, 0, kernels, max_programs=3)
    cases = [view(rng, dtype, 6000) for dtype in DTYPES for _ in range(rounds)]
    # Long enough for the bulk kernel; one of them is left to the exact one again.
    lengths = {"float32": 50_000, "float64": 20_000, "int32": 40_000, "int8": 80_000}
    cases += [memory(rng, dtype, numel + 3)[1:] for dtype, numel in lengths.items()]
    cases += [memory(rng, dtype, 20_001) for dtype in ("int64", "uint64")]
    cases.append(torch.ones(20_000).index_fill_(0, torch.tensor([12_345]), torch.nan))
    found = engine.read([region_of(case) for case in cases], stream=0)
    wrong = 0
    for case, stats in zip(cases, found, strict=True):
        integral = not (case.is_floating_point() or case.is_complex())
        problem = difference(stats, reference(case), integral)
        if problem:
            wrong += 1
            print(case.dtype, tuple(case.shape), case.stride(), case.storage_offset(), problem)
    # The exact kernel for each dtype, the bulk kernel for six.
    few = kernels.launches <= len(DTYPES) + 6 and driver.waits == 1
    print(f"{len(cases)} cases, {wrong} wrong, {'few' if few else 'many'} launches")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
