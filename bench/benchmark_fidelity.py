"""Does tracing move the time that do_bench_cudagraph reports, or its repeat count?

Kernels of about 1 us to 1 ms, each measured in pairs: traced over untraced (A/B), and untraced over
untraced (A/A), interleaved. A row is `ok` if the median ratio of the times is within 1 % for
kernels of 10 us and longer, and inside the A/A pairs' 5th to 95th percentile for shorter ones, and
if n_repeat's ratio is inside the A/A interval or above 0.90. Before each measurement, traced or
not, the kernel is launched 100 times, as in a program that has been running; with `--cold`
do_bench_cudagraph follows enable() at once, and its estimate is taken over the first five launches
of a kernel after the tracer has met it, which run with cold caches. In the simulator the clock is
virtual: times and counts must be exactly equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import attrs
import torch
from triton.testing import do_bench_cudagraph

import lazytrace
from bench import _kernels
from bench._measure import Spread, interleave, ratios
from bench._place import Place, has_gpu, place
from bench._report import Result, options, show

_TARGETS_US = (1, 10, 100, 1000)
_REP_MS = 20
_SIMULATED_REPEATS = 50.5  # half a kernel off the edge at which rounding would decide
_WARM_LAUNCHES = 100
_EXACT = 1e-9  # what the rounding of the virtual clock may differ by
_EAGER_CALLS = 6  # what do_bench_cudagraph calls before its capture: once, then five to estimate
_BLOCK = 1024


@attrs.frozen
class Row:
    """One kernel: its untraced time, and ratios of pairs for time and repeat count."""

    target_us: int
    untraced_us: float
    time_ratio: Spread
    time_control: Spread
    repeats: float
    repeat_ratio: Spread
    repeat_control: Spread
    verdict: str


def _one(launch: Callable[[], object], rep: float, warm: int, *, traced: bool) -> dict[str, float]:
    """The reported microseconds, and n_repeat as it is counted in the benchmarked function."""
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        launch()

    with lazytrace.trace() if traced else nullcontext():
        for _ in range(warm):
            launch()
        if warm:
            torch.cuda.synchronize()
        reported_ms = do_bench_cudagraph(counted, rep=rep)
    return {"us": reported_ms * 1000, "repeats": calls - _EAGER_CALLS}


def _row(
    target_us: int, launch: Callable[[], object], rep: float, rounds: int, warm: int, gpu: bool
) -> Row:
    def untraced() -> dict[str, float]:
        return _one(launch, rep, warm, traced=False)

    def traced() -> dict[str, float]:
        return _one(launch, rep, warm, traced=True)

    traced(), untraced()  # compiles, here and in a flush
    found = interleave({"B": traced, "A": untraced, "A1": untraced, "A2": untraced}, rounds)
    time_ratio = ratios(found["B"]["us"], found["A"]["us"])
    time_control = ratios(found["A2"]["us"], found["A1"]["us"])
    repeat_ratio = ratios(found["B"]["repeats"], found["A"]["repeats"])
    repeat_control = ratios(found["A2"]["repeats"], found["A1"]["repeats"])
    untraced_us = Spread.of(found["A"]["us"]).median
    if not gpu:
        extremes = (time_ratio.low, time_ratio.high, repeat_ratio.low, repeat_ratio.high)
        equal = all(abs(ratio - 1) < _EXACT for ratio in extremes)
        verdict = "equal" if equal else "FAIL: not equal"
    else:
        verdict = judge(untraced_us, time_ratio, time_control, repeat_ratio, repeat_control)
    return Row(
        target_us,
        untraced_us,
        time_ratio,
        time_control,
        Spread.of(found["A"]["repeats"]).median,
        repeat_ratio,
        repeat_control,
        verdict,
    )


def judge(
    untraced_us: float,
    time_ratio: Spread,
    time_control: Spread,
    repeat_ratio: Spread,
    repeat_control: Spread,
) -> str:
    """`ok`, or what is out of its bounds."""
    if untraced_us >= 10:
        time_ok = abs(time_ratio.median - 1) <= 0.01
    else:
        time_ok = time_control.covers(time_ratio.median)
    repeats_ok = repeat_ratio.median > 0.90 or repeat_control.covers(repeat_ratio.median)
    wrong = [name for name, ok in (("time", time_ok), ("n_repeat", repeats_ok)) if not ok]
    return f"FAIL: {', '.join(wrong)}" if wrong else "ok"


def _launcher(device: str, steps: int) -> Callable[[], object]:
    x, out = torch.ones(_BLOCK, device=device), torch.empty(_BLOCK, device=device)
    spin = _kernels.spin[(1,)]
    return lambda: spin(x, out, _BLOCK, steps, BLOCK=_BLOCK)


def _steps_for(target_us: int) -> int:
    """How many steps make the kernel last as long as the target, by measuring two lengths."""
    low, high = 100, 10_100
    short, long = (do_bench_cudagraph(_launcher("cuda", steps)) * 1000 for steps in (low, high))
    per_step = (long - short) / (high - low)
    return max(1, round(low + (target_us - short) / per_step))


@contextmanager
def _prepared(target_us: int) -> Iterator[tuple[Place, Callable[[], object], float]]:
    """The place, a kernel of about the target's length, and the ``rep`` to benchmark it with."""
    with place(kernel_ms=target_us / 1000) as where:
        if where.gpu is not None:
            yield where, _launcher(where.device, _steps_for(target_us)), _REP_MS
        else:
            yield where, _launcher(where.device, 1), _SIMULATED_REPEATS * target_us / 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status, 1 if a row is out of its bounds."""
    parser = options(__doc__, rounds=15)
    parser.add_argument(
        "--cold", action="store_true", help="benchmark right after enable(), without warm launches"
    )
    asked = parser.parse_args(arguments)
    warm = 0 if asked.cold else _WARM_LAUNCHES
    rows, machine = [], ""
    for target_us in _TARGETS_US:
        with _prepared(target_us) as (where, launch, rep):
            machine = where.sentence
            rows.append(_row(target_us, launch, rep, asked.rounds, warm, has_gpu()))
    question = (__doc__ or "").splitlines()[0]
    notes = [
        "A/B: traced over untraced, A/A: untraced over untraced; median [5th 95th percentile]."
    ]
    result = Result(question, machine, asked.rounds, rows, notes)
    if asked.json:
        print(result.as_json())
    else:
        _show(result)
    return int(any(row.verdict.startswith("FAIL") for row in rows))


def _show(result: Result) -> None:
    header = (
        "kernel", "untraced us", "time A/B", "time A/A", "n_repeat", "n_repeat A/B", "n_repeat A/A",
        "verdict",
    )  # fmt: skip
    cells = [
        (
            f"about {row.target_us} us",
            f"{row.untraced_us:.2f}",
            str(row.time_ratio),
            str(row.time_control),
            f"{row.repeats:.0f}",
            str(row.repeat_ratio),
            str(row.repeat_control),
            row.verdict,
        )
        for row in result.rows
    ]
    show(result, header, cells)


if __name__ == "__main__":
    sys.exit(main())
