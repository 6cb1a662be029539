"""The ``demo`` command: traces three benchmarks, and shows what was recorded."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from lazytrace._api import trace
from lazytrace._version import __version__
from lazytrace.errors import MissingDependencyError
from lazytrace.records import LaunchRecord
from lazytrace.table import launch_table

DEFAULT_OUT = "lazytrace-traces"
_REP_MS = 20
_SIMULATED_REP_MS = 3  # a simulated kernel takes 1 ms by the virtual clock, and more by the wall's
_NEEDED = ("torch", "triton", "rich")
_NEEDED_TO_SIMULATE = ("numpy",)


@attrs.frozen
class Place:
    """Where the demonstration runs: a CUDA device, or (``name`` None) the simulator."""

    name: str | None

    @property
    def torch_device(self) -> str:
        """The device of the tensors; the simulator's are in host memory."""
        return "cpu" if self.name is None else "cuda"

    @property
    def sentence(self) -> str:
        """What is to be said of the place."""
        if self.name is None:
            return "no CUDA device here: running in lazytrace's simulator, on the CPU"
        return f"running on {self.name}"


def add_to(commands: Any) -> None:
    """Adds the command to argparse's subcommands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="trace three small benchmarks and show the records",
        description="Benchmarks a vector add, a fused softmax and a matrix product with "
        "triton.testing.do_bench_cudagraph while lazytrace records every launch; on a GPU if "
        "there is one, else in the simulator.",
    )
    parser.add_argument(
        "-o",
        "--out",
        default=DEFAULT_OUT,
        help="a directory, which gets a new file, or a new path that ends in .ndjson "
        "(default: ./%(default)s)",
    )
    parser.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Runs the demonstration and prints it; returns the exit status."""
    _require(*_NEEDED)
    with _place() as place:
        import torch
        import triton

        versions = f"torch {torch.__version__}, Triton {triton.__version__}"
        print(f"lazytrace {__version__}, {versions}: {place.sentence}", flush=True)
        with trace(asked.out) as tracer:
            times = _benchmark(place)
            records = tracer.records()
    _show(place, times, records)
    print(f'Trace: {tracer.path}\nRead it with lazytrace.read("{tracer.path}")')
    return 0


def _require(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f'the demo needs {", ".join(missing)}: python -m pip install "lazytrace[torch,sim,cli]"'
        )


@contextmanager
def _place() -> Iterator[Place]:
    import torch

    # A ROCm build has torch.cuda too, but no CUDA graphs that lazytrace could read.
    if torch.version.cuda is not None and torch.cuda.is_available():
        yield Place(torch.cuda.get_device_name())
        return
    _require(*_NEEDED_TO_SIMULATE)
    from lazytrace.testing import simulate

    with simulate():
        yield Place(None)


def _benchmark(place: Place) -> dict[str, float]:
    """Milliseconds that do_bench_cudagraph reports, by workload."""
    from triton.testing import do_bench_cudagraph

    from lazytrace._demo.workloads import ON_A_GPU, SIMULATED, workloads

    simulated = place.name is None
    rep = _SIMULATED_REP_MS if simulated else _REP_MS
    return {
        workload.name: do_bench_cudagraph(workload.launch, rep=rep)
        for workload in workloads(SIMULATED if simulated else ON_A_GPU, place.torch_device)
    }


def _show(place: Place, times: dict[str, float], records: list[LaunchRecord]) -> None:
    print(f"\nWhat do_bench_cudagraph launched, {sum(r.count for r in records)} launches:\n")
    print(launch_table(records))
    if place.name is None:
        print("Times are not shown: the simulator's clock is virtual.")
        return
    for name, milliseconds in times.items():
        print(f"do_bench_cudagraph({name}): {milliseconds * 1000:.2f} us")
