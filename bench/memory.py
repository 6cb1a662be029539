"""How much memory do pending captured launches take?

Bytes that lazytrace's own files hold (tracemalloc) for launches that are captured and not replayed
yet. Identical launches fold into one record, so that ten thousand must stay below 1 MiB; launches
with a fresh tensor each are shown beside them.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import attrs
import torch

import lazytrace
from bench import _kernels
from bench._place import place
from bench._report import Result, options, show

_SIZE = 1024
_LIMIT_BYTES = 1 << 20
_PACKAGE = Path(lazytrace.__file__).parent


@attrs.frozen
class Row:
    """What ``launches`` captured launches hold, in bytes."""

    case: str
    launches: int
    held_bytes: int
    bytes_per_launch: float
    verdict: str


def _held_bytes() -> int:
    """What lazytrace's files hold now, the simulator's not counted: it stands for the device."""
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces(
        [
            tracemalloc.Filter(True, str(_PACKAGE / "*")),
            tracemalloc.Filter(False, str(_PACKAGE / "_simulator" / "*")),
        ]
    )
    return sum(entry.size for entry in snapshot.statistics("filename"))


def _row(case: str, device: str, launches: int, *, fresh: bool) -> Row:
    x, y = torch.zeros(_SIZE, device=device), torch.zeros(_SIZE, device=device)
    outs = [torch.zeros(_SIZE, device=device) for _ in range(launches if fresh else 1)]
    add = _kernels.add[(1,)]
    add(x, y, outs[0], _SIZE, BLOCK=_SIZE)  # compiles
    graph = torch.cuda.CUDAGraph()
    with lazytrace.trace():
        add(x, y, outs[0], _SIZE, BLOCK=_SIZE)
        torch.cuda.synchronize()
        tracemalloc.start()
        try:
            before = _held_bytes()
            with torch.cuda.graph(graph):
                for number in range(launches):
                    add(x, y, outs[number % len(outs)], _SIZE, BLOCK=_SIZE)
            held = _held_bytes() - before
        finally:
            tracemalloc.stop()
    graph.reset()
    verdict = "-" if fresh else ("ok" if held < _LIMIT_BYTES else "FAIL: 1 MiB or more")
    return Row(case, launches, held, held / launches, verdict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status, 1 if identical launches take too much."""
    parser = options(__doc__, rounds=None)
    parser.add_argument("--launches", type=int, default=10_000, help="default %(default)s")
    asked = parser.parse_args(arguments)
    with place() as where:
        rows = [
            _row("identical", where.device, asked.launches, fresh=False),
            _row("a fresh tensor each", where.device, asked.launches, fresh=True),
        ]
    question = (__doc__ or "").splitlines()[0]
    result = Result(question, where.sentence, None, rows)
    if asked.json:
        print(result.as_json())
    else:
        cells = [
            (
                row.case,
                str(row.launches),
                f"{row.held_bytes / 1024:.1f}",
                f"{row.bytes_per_launch:.2f}",
                row.verdict,
            )
            for row in rows
        ]
        show(result, ("captured launches", "count", "KiB", "bytes each", "verdict"), cells)
    return int(any(row.verdict.startswith("FAIL") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
