"""What does values="at_launch" cost the device, per statistics node in a graph?

Microseconds of GPU time per launch of a graph of many launches, untraced and with a statistics
kernel before and after each launch, and what one such node adds. `add` reads two tensors before
and one after; `read three` reads three tensors before and one element after. `untraced again` is
the A/A control.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import attrs
import torch
import triton
import triton.language as tl

import lazytrace
from bench import _kernels
from bench._measure import Spread, interleave, ratios
from bench._place import Place, place
from bench._report import Result, options, show

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, 4 * MIB, 256 * MIB)
SIMULATED = (KIB,)
_BLOCK = 1024
_MOST_BYTES = 1 << 37  # that a graph's launches may read in all: fewer of the large ones
_UNTRACED, _CONTROL, _TRACED = "untraced", "untraced again", "at_launch"


@triton.jit
def read_three(x, y, z, out, n, BLOCK: tl.constexpr):
    """``out[0]`` takes the first program's sum of three tensors that are all read."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    total += tl.load(z + offsets, mask=mask)
    tl.store(out, tl.sum(total, axis=0))


@attrs.frozen
class Row:
    """One kernel at one size. ``node_us`` is what each of our nodes adds."""

    kernel: str
    size_bytes: int
    launches: int
    untraced_us: Spread
    control: Spread
    traced_us: Spread
    nodes: float
    node_us: Spread


@attrs.frozen
class Case:
    """A kernel over tensors of one size, launched ``launches`` times in a graph."""

    kernel: str
    size_bytes: int
    launches: int
    launch: Callable[[], object]

    def graph(self, traced: bool) -> torch.cuda.CUDAGraph:
        """The captured launches, with the statistics nodes if they are traced."""
        graph = torch.cuda.CUDAGraph()
        with lazytrace.trace(values="at_launch") if traced else nullcontext():
            self.launch()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                for _ in range(self.launches):
                    self.launch()
        return graph

    def microseconds(self, graph: torch.cuda.CUDAGraph, replays: int) -> float:
        """The median time of a replay on the device, per launch."""
        times = []
        graph.replay()
        for _ in range(replays):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times) * 1e3 / self.launches


def cases(where: Place, launches: int) -> list[Case]:
    """Both kernels at every size."""
    found = []
    for size_bytes in SIMULATED if where.gpu is None else SIZES:
        n = size_bytes // 4
        grid = (triton.cdiv(n, _BLOCK),)
        tensors = [torch.ones(n, device=where.device) for _ in range(3)]
        out = torch.zeros(1, device=where.device)
        count = max(10, min(launches, _MOST_BYTES // (6 * size_bytes)))

        def add(grid=grid, tensors=tensors, n=n):  # type: ignore[no-untyped-def]
            _kernels.add[grid](*tensors, n, BLOCK=_BLOCK)

        def three(grid=grid, tensors=tensors, n=n, out=out):  # type: ignore[no-untyped-def]
            read_three[grid](*tensors, out, n, BLOCK=_BLOCK)

        found.append(Case("add", size_bytes, count, add))
        found.append(Case("read three", size_bytes, count, three))
    return found


def measure(case: Case, rounds: int, replays: int) -> Row:
    """The graphs' times in interleaved rounds."""
    case.launch()
    torch.cuda.synchronize()
    graphs = {
        _UNTRACED: case.graph(traced=False),
        _CONTROL: case.graph(traced=False),
        _TRACED: case.graph(traced=True),
    }

    def timed(graph: torch.cuda.CUDAGraph) -> Callable[[], dict[str, float]]:
        return lambda: {"us": case.microseconds(graph, replays)}

    found = interleave({name: timed(graph) for name, graph in graphs.items()}, rounds)
    bare, again, traced = (found[name]["us"] for name in (_UNTRACED, _CONTROL, _TRACED))
    nodes = 2.0
    added = [(one - other) / nodes for one, other in zip(traced, bare)]
    return Row(
        case.kernel,
        case.size_bytes,
        case.launches,
        Spread.of(bare),
        ratios(again, bare),
        Spread.of(traced),
        nodes,
        Spread.of(added),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = options(__doc__, rounds=5)
    parser.add_argument("--launches", type=int, default=1000, help="in a graph; default 1000")
    parser.add_argument("--replays", type=int, default=5, help="in a round; default 5")
    asked = parser.parse_args(arguments)
    with place() as where:
        rows = [measure(case, asked.rounds, asked.replays) for case in cases(where, asked.launches)]
        question = (__doc__ or "").splitlines()[0]
        result = Result(question, where.sentence, asked.rounds, rows)
    if asked.json:
        print(result.as_json())
        return 0
    header = ("kernel", "bytes", "launches", "untraced us", "A/A", "at_launch us", "us per node")
    show(
        result,
        header,
        [
            (
                row.kernel,
                str(row.size_bytes),
                str(row.launches),
                str(row.untraced_us),
                str(row.control),
                str(row.traced_us),
                str(row.node_us),
            )
            for row in rows
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
