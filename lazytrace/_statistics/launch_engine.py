"""Enqueues a launch's statistics node on the launch's own stream, also into a capture."""

from __future__ import annotations

from typing import Any

import attrs
import triton

from lazytrace._statistics.compiled import LoadedKernel, Stage
from lazytrace._statistics.launch_kernels import lazytrace_launch_statistics
from lazytrace._statistics.launch_plan import MOST_PROGRAMS, LaunchPlan

SUB = 512

LAUNCH_STAGE = Stage(lazytrace_launch_statistics, {"SUB": SUB, "MOST": MOST_PROGRAMS})


@attrs.define
class LaunchEngine:
    """One device's kernel for all nodes. It makes no other device call: the caller owns memory."""

    _kernel: Any = None

    def prepare(self) -> None:
        """Compiles and loads the kernel onto the current device; to be called outside captures."""
        if self._kernel is None:
            target = triton.runtime.driver.active.get_current_target()
            self._kernel = LoadedKernel.load(LAUNCH_STAGE, target)

    def launch(self, plan: LaunchPlan, address: int, stream: int) -> None:
        """Enqueues the node whose block of memory is at ``address``, its image already there."""
        self._kernel.launch(
            (plan.programs, plan.rows),
            stream,
            address + plan.rows_offset,
            address + plan.slots_offset,
            address + plan.partials_offset,
            address,
            plan.programs,
        )
