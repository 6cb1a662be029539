"""Runs the kernel of the launch nodes in Triton's interpreter over random views of one launch.

Run as a script (TRITON_INTERPRET=1), it prints what differs from the reference.
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

from lazytrace._statistics.launch_engine import parameters
from lazytrace._statistics.launch_kernels import lazytrace_launch_statistics
from lazytrace._statistics.launch_plan import (
    LaunchPlan,
    SlotReading,
    decode_slots,
    plan_launch,
)

_SUB = 64


def run(plan: LaunchPlan, block: Any) -> list[SlotReading | Exception]:
    """One run of the node whose memory is ``block``."""
    base = ctypes.addressof(block)
    lazytrace_launch_statistics[(plan.programs, plan.rows)](
        *parameters(plan, base), INLINE=bool(plan.inline), SUB=_SUB, MOST=8
    )
    return decode_slots(plan, ctypes.string_at(base + plan.slots_offset, plan.slot_bytes))


def block_of(plan: LaunchPlan) -> Any:
    block = ctypes.create_string_buffer(plan.size_bytes)
    ctypes.memmove(block, plan.image, len(plan.image))
    return block


def problem_of(case: torch.Tensor, reading: SlotReading | Exception) -> str:
    if isinstance(reading, Exception):
        return repr(reading)
    if reading.replay != (2 if case.numel() else 0):
        return f"replay {reading.replay}"
    wanted = reference(case)
    stats = reading.stats
    if case.dtype is torch.float64 and stats.max is not None and stats.std is None:
        # A node has no moments of what squares cannot be summed of.
        wanted = attrs.evolve(wanted, mean=stats.mean, std=None)
    return difference(stats, wanted, not (case.is_floating_point() or case.is_complex()))


def main(seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    # NumPy warns of the overflows and NaN that the cases are about.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    wrong = count = 0
    for _ in range(rounds):
        launches = [
            [view(rng, dtype, 300) for dtype in DTYPES],
            [memory(rng, rng.choice(DTYPES[:18]), 200) for _ in range(4)],
        ]
        for cases in launches:
            plan = plan_launch([region_of(case) for case in cases])
            block = block_of(plan)
            run(plan, block)
            for case, reading in zip(cases, run(plan, block), strict=True):
                count += 1
                problem = problem_of(case, reading)
                if problem:
                    wrong += 1
                    print(case.dtype, tuple(case.shape), case.stride(), problem)
    print(f"{count} cases, {wrong} wrong")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
