"""A simulated CUDA device for tests: Triton's real launch path and CUDA graphs without a GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lazytrace.errors import AlreadyEnabledError, MissingDependencyError

if TYPE_CHECKING:
    from lazytrace._simulator.simulation import Simulation

__all__ = ["simulate"]

_NEEDED = {"torch": "torch,sim", "triton": "torch,sim", "numpy": "sim"}


@contextmanager
def simulate(
    arch: int = 90, execute: bool = True, kernel_ms: float | None = 1.0
) -> Iterator[Simulation]:
    """Put a simulated NVIDIA device in place of Triton's driver and of torch.cuda.

    Kernels are compiled for real (``arch`` is the compute capability, 90 for sm_90) and launched
    through Triton's own launch path, hooks included, on CPU tensors; Triton's interpreter computes
    their values. Streams, events and CUDA graphs of ``torch.cuda`` follow CUDA's capture rules:
    captured kernels are recorded, replays run them, and a forbidden call raises what CUDA raises.

    ``execute=False`` records light nodes and computes nothing. ``kernel_ms`` is the time in
    milliseconds that each kernel of the user adds to the clock behind ``Event.elapsed_time``;
    None takes the wall clock. Leaving restores every attribute, also after an exception.

    Raises MissingDependencyError without torch, triton or numpy, LazytraceError if nested.
    Limits: torch operations are held to the rules in the capturing thread only; reductions and
    atomics in bfloat16 raise NotImplementedError, other bfloat16 arithmetic works; no Gluon.
    """
    for module, extra in _NEEDED.items():
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError(
                f'lazytrace.testing.simulate() needs {module}: pip install "lazytrace[{extra}]"'
            )
    from lazytrace._process import ACTIVE
    from lazytrace._simulator.runtime import SimulatedRuntime
    from lazytrace._simulator.simulation import running

    if ACTIVE.tracer is not None and ACTIVE.tracer.enabled:
        raise AlreadyEnabledError("a tracer is active already: disable() it before simulate()")
    with running(arch, execute, kernel_ms) as simulation:
        simulation.driver.lazytrace_runtime = SimulatedRuntime(simulation)
        simulation.on_exit(ACTIVE.disable)
        yield simulation
