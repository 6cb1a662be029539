"""Fixtures of the whole suite: a device to run on, and a check that no hook of ours is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch
import triton
from triton.compiler.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner

from lazytrace._process import ACTIVE
from lazytrace.testing import simulate


@attrs.frozen
class Device:
    """Where a contract test runs: ``name`` is ``simulated`` or ``cuda``.

    ``torch_device`` is the device string for tensors; ``simulation`` the simulator's handle.
    """

    name: str
    torch_device: str
    simulation: Any = None

    def synchronize(self) -> None:
        """The user's own synchronisation, as a flush point."""
        torch.cuda.synchronize()


def has_gpu() -> bool:
    """Whether a CUDA device can be used."""
    return torch.cuda.is_available()


needs_gpu = pytest.mark.skipif(not has_gpu(), reason="needs a CUDA device")


@pytest.fixture(
    params=["simulated", pytest.param("cuda", marks=(pytest.mark.gpu, needs_gpu))],
)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Runs a contract test over the simulator and over CUDA."""
    if request.param == "cuda":
        yield Device("cuda", "cuda")
        return
    with simulate() as simulation:
        yield Device("simulated", "cpu", simulation)


@pytest.fixture
def simulated() -> Iterator[Device]:
    """The simulator alone."""
    with simulate() as simulation:
        yield Device("simulated", "cpu", simulation)


def _hooked() -> dict[str, object]:
    """Every attribute that lazytrace may replace."""
    graph = torch.cuda.CUDAGraph
    found: dict[str, object] = {
        "CompiledKernel.launch_metadata": CompiledKernel.launch_metadata,
        "Autotuner._bench": Autotuner._bench,
        "torch.cuda.synchronize": torch.cuda.synchronize,
        "torch.cuda.Stream.synchronize": torch.cuda.Stream.synchronize,
        "torch.accelerator.synchronize": torch.accelerator.synchronize,
    }
    for name in ("capture_begin", "capture_end", "replay", "reset", "raw_cuda_graph"):
        found[f"CUDAGraph.{name}"] = getattr(graph, name, None)
    for name in ("launch_enter_hook", "launch_exit_hook"):
        hook = getattr(triton.knobs.runtime, name)
        found[name] = tuple(getattr(hook, "calls", ())) if hook is not None else None
    return found


@pytest.fixture(autouse=True)
def the_stream_is_as_before() -> Iterator[None]:
    """After each test: the default stream is current.

    Where the end of a capture raises, torch.cuda.graph leaves the capture's stream current, and
    every later test would run there.
    """
    yield
    if torch.cuda.is_initialized() and torch.cuda.is_available():
        torch.cuda.set_stream(torch.cuda.default_stream())


@pytest.fixture(autouse=True)
def no_hook_is_left() -> Iterator[None]:
    """Before and after each test: no tracer is active and every patched attribute is original."""
    assert ACTIVE.tracer is None or not ACTIVE.tracer.enabled
    before = _hooked()
    yield
    left = ACTIVE.tracer is not None and ACTIVE.tracer.enabled
    if left:
        ACTIVE.disable()
    assert not left, "the test left a tracer enabled"
    ACTIVE.tracer = None
    assert _hooked() == before
