"""Enqueues a launch's statistics node on the launch's own stream, also into a capture."""

from __future__ import annotations

from typing import Any

import attrs
import triton

from lazytrace._statistics.compiled import LoadedKernel, Stage
from lazytrace._statistics.launch_kernels import lazytrace_launch_statistics
from lazytrace._statistics.launch_plan import MOST_PROGRAMS, LaunchPlan

SUB = 1024
_WARPS = 8
_INLINE_ROWS = 4


def launch_stage(is_inline: bool) -> Stage:
    """The node's kernel, with its rows as parameters or in memory."""
    constants = {"INLINE": is_inline, "SUB": SUB, "MOST": MOST_PROGRAMS}
    return Stage(lazytrace_launch_statistics, constants)


def parameters(plan: LaunchPlan, address: int) -> tuple[int, ...]:
    """The kernel's numbers for a node whose block of memory is at ``address``."""
    inline = [*plan.inline, *[(0, 0, 0)] * (_INLINE_ROWS - len(plan.inline))]
    codes = sum(code << 8 * place for place, (_, _, code) in enumerate(inline))
    numbers = (number for row in inline for number in row[:2])
    return (
        address + plan.rows_offset,
        address + plan.slots_offset,
        address + plan.partials_offset,
        address,
        plan.programs,
        codes,
        *numbers,
    )


@attrs.define
class LaunchEngine:
    """One device's kernels for all nodes. It makes no other device call: the caller owns memory."""

    _kernels: dict[bool, Any] = attrs.field(factory=dict)

    def prepare(self) -> None:
        """Compiles and loads the kernels onto the current device; to be called outside captures."""
        for is_inline in (True, False):
            if is_inline not in self._kernels:
                target = triton.runtime.driver.active.get_current_target()
                self._kernels[is_inline] = LoadedKernel.load(
                    launch_stage(is_inline), target, _WARPS
                )

    def launch(self, plan: LaunchPlan, address: int, stream: int) -> None:
        """Enqueues the node whose block of memory is at ``address``, its image already there."""
        kernel = self._kernels[bool(plan.inline)]
        kernel.launch((plan.programs, plan.rows), stream, *parameters(plan, address))
