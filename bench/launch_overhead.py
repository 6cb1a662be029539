"""What does a traced launch cost the host, over a bare one?

Microseconds per launch, in batches, and the ratio to the bare launch of the same round; eager and
inside a CUDA graph capture. `bare again` is the A/A control: what the ratio of two equal things
scatters by. TritonParse, where it is installed, runs in a process of its own, for it cannot be
removed again: its ratio is to the median of the bare launches here.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import attrs
import torch
from triton import knobs

import lazytrace
from bench import _kernels
from bench._measure import Spread, interleave, no_collection, ratios
from bench._place import Place, place
from bench._report import Result, options, show

_SIZE = 1024
_ROOT = Path(__file__).parent.parent
_PEER = "tritonparse"
_BARE, _CONTROL = "bare", "bare again"


@attrs.frozen
class Row:
    """One variant in one case. ``added_us`` is the median of the differences to bare."""

    case: str
    variant: str
    us: Spread
    ratio: Spread
    added_us: float


@attrs.frozen
class Case:
    """A kind of launch: ``launches(n)`` makes ready for n of them, and returns what does them."""

    name: str
    launches: Callable[[int], Callable[[], None]]


def cases(device: str) -> list[Case]:
    """Three repeated tensors, a fresh one each time, and many arguments."""
    x, y, out = (torch.zeros(_SIZE, device=device) for _ in range(3))
    tensors = [torch.zeros(_SIZE, device=device) for _ in range(10)]
    scalars = (_SIZE, *(0.5 + number for number in range(11)))
    add, wide = _kernels.add[(1,)], _kernels.wide[(1,)]

    def repeated(count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                add(x, y, out, _SIZE, BLOCK=_SIZE)

        return run

    def fresh(count: int) -> Callable[[], None]:
        outs = [torch.zeros(_SIZE, device=device) for _ in range(count)]

        def run() -> None:
            for each in outs:
                add(x, y, each, _SIZE, BLOCK=_SIZE)

        return run

    def many(count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                wide(*tensors, *scalars, BLOCK=_SIZE)

        return run

    return [
        Case("3 tensors, repeated", repeated),
        Case("3 tensors, one fresh", fresh),
        Case("10 tensors + 12 scalars", many),
    ]


def batch(found: Sequence[Case], launches: int) -> dict[str, float]:
    """Microseconds per launch of each case, eager and in capture; all are launched before."""
    figures = {}
    with no_collection():
        for case in found:
            case.launches(8)()
            torch.cuda.synchronize()
            figures[f"{case.name}, eager"] = _us(case.launches(launches), launches)
            torch.cuda.synchronize()
            run, graph = case.launches(launches), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                figures[f"{case.name}, in capture"] = _us(run, launches)
            graph.reset()
    return figures


def _us(run: Callable[[], None], launches: int) -> float:
    begin = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - begin) / launches / 1000


@contextmanager
def _empty_hook() -> Iterator[None]:
    """A launch hook that does nothing, as cheap as Triton's own mechanism can be."""

    def hook(_: object) -> None:
        pass

    runtime = knobs.runtime
    if runtime.launch_enter_hook is None:  # Triton 3.4: a plain slot
        runtime.launch_enter_hook = hook
        try:
            yield
        finally:
            runtime.launch_enter_hook = None
        return
    runtime.launch_enter_hook.add(hook)
    try:
        yield
    finally:
        runtime.launch_enter_hook.remove(hook)


def _variants() -> dict[str, Callable[[], AbstractContextManager[object]]]:
    return {
        _BARE: nullcontext,
        _CONTROL: nullcontext,
        "empty hook": _empty_hook,
        "lazytrace, values off": lambda: lazytrace.trace(values="off"),
        "lazytrace, deferred": lambda: lazytrace.trace(values="deferred"),
    }


def _measured(
    variants: Mapping[str, Callable[[], AbstractContextManager[object]]],
    device: str,
    rounds: int,
    launches: int,
) -> dict[str, dict[str, list[float]]]:
    found = cases(device)
    batch(found, 8)  # compiles

    def measured(context: Callable[[], AbstractContextManager[object]]) -> dict[str, float]:
        with context():
            return batch(found, launches)

    return interleave(
        {name: partial(measured, context) for name, context in variants.items()}, rounds
    )


def _rows(figures: Mapping[str, dict[str, list[float]]]) -> list[Row]:
    bare = figures[_BARE]
    return [
        Row(
            case,
            variant,
            Spread.of(by_case[case]),
            ratios(by_case[case], bare[case]),
            Spread.of([mine - base for mine, base in zip(by_case[case], bare[case])]).median,
        )
        for case in bare
        for variant, by_case in figures.items()
    ]


def _peer(rounds: int, launches: int) -> dict[str, list[float]] | str:
    """TritonParse's figures by case, from a process of its own, or why there are none."""
    if importlib.util.find_spec(_PEER) is None:
        return "TritonParse is not installed: not compared."
    command = [sys.executable, "-m", "bench.launch_overhead", "--only-peer"]
    command += ["--rounds", str(rounds), "--launches", str(launches)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=_ROOT)
    if done.returncode:
        return f"TritonParse's process failed with status {done.returncode}: not compared."
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])[_PEER]
    return found


def _peer_rows(
    figures: Mapping[str, Sequence[float]], bare: Mapping[str, Sequence[float]]
) -> list[Row]:
    rows = []
    for case, values in figures.items():
        us, base = Spread.of(values), Spread.of(bare[case]).median
        ratio = Spread(us.median / base, us.low / base, us.high / base)
        rows.append(Row(case, f"{_PEER} (own process)", us, ratio, us.median - base))
    return rows


def _measure_peer(rounds: int, launches: int) -> None:
    from tritonparse import structured_logging

    with place() as where, tempfile.TemporaryDirectory() as folder:
        # Before the first compile: kernels that were compiled earlier are traced without arguments.
        structured_logging.init(folder, enable_trace_launch=True)
        print(json.dumps(_measured({_PEER: nullcontext}, where.device, rounds, launches)))


def _result(where: Place, rounds: int, launches: int) -> Result:
    figures = _measured(_variants(), where.device, rounds, launches)
    rows = _rows(figures)
    notes = [f"{launches} launches a batch; median [5th 95th percentile] over the rounds."]
    # It is so slow that fewer launches suffice, and so noisy that more rounds do not help.
    peer = _peer(min(rounds, 10), min(launches, 100))
    if isinstance(peer, str):
        notes.append(peer)
    else:
        rows += _peer_rows(peer, figures[_BARE])
        rows.sort(key=lambda row: list(figures[_BARE]).index(row.case))
    question = (__doc__ or "").splitlines()[0]
    return Result(question, where.sentence, rounds, rows, notes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    parser = options(__doc__, rounds=40)
    parser.add_argument("--launches", type=int, default=500, help="a batch, default %(default)s")
    parser.add_argument("--only-peer", action="store_true", help="what the peer's process runs")
    asked = parser.parse_args(arguments)
    if asked.only_peer:
        _measure_peer(asked.rounds, asked.launches)
        return 0
    with place() as where:
        result = _result(where, asked.rounds, asked.launches)
    if asked.json:
        print(result.as_json())
        return 0
    cells = [
        (row.case, row.variant, f"{row.us.median:.2f}", str(row.ratio), f"{row.added_us:+.2f}")
        for row in result.rows
    ]
    show(result, ("case", "variant", "us per launch", "ratio to bare", "added us"), cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
