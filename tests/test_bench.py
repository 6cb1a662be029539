from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
ON_GPU = torch.version.cuda is not None and torch.cuda.is_available()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the bench folder, which is not installed."""
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"bench.{name}")


def test_spread_is_median_and_percentiles(bench: Any) -> None:
    """Percentiles are interpolated between order statistics."""
    spread = bench("_measure").Spread.of([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (spread.median, spread.low, spread.high) == pytest.approx((3.0, 1.2, 4.8))
    assert spread.covers(1.2)
    assert not spread.covers(1.1)


def test_rounds_are_interleaved_and_paired(bench: Any) -> None:
    """Each variant runs once a round, in an order that turns, and pairs are of one round."""
    measure, order = bench("_measure"), []

    def variant(name: str, scale: float) -> Any:
        def run() -> dict[str, float]:
            order.append(name)
            return {"us": scale * (1 + (len(order) - 1) // 2)}

        return run

    found = measure.interleave({"A": variant("A", 1.0), "B": variant("B", 3.0)}, 4)
    assert [sorted(order[turn : turn + 2]) for turn in (0, 2, 4, 6)] == [["A", "B"]] * 4
    assert found["A"]["us"] == [1, 2, 3, 4]
    assert measure.ratios(found["B"]["us"], found["A"]["us"]) == measure.Spread(3, 3, 3)


@pytest.mark.parametrize(
    ("untraced_us", "time_ratio", "repeat_ratio", "verdict"),
    [
        (100, 1.009, 1.0, "ok"),
        (100, 1.011, 1.0, "FAIL: time"),
        (2, 1.03, 1.0, "ok"),
        (2, 1.06, 1.0, "FAIL: time"),
        (100, 1.0, 0.91, "ok"),
        (2, 1.06, 0.5, "FAIL: time, n_repeat"),
    ],
)
def test_fidelity_is_judged_by_the_controls(
    untraced_us: float, time_ratio: float, repeat_ratio: float, verdict: str, bench: Any
) -> None:
    """1 % from 10 us on, the A/A interval below; n_repeat in the A/A interval or above 0.90."""
    spread, control = bench("_measure").Spread, bench("_measure").Spread(1.0, 0.95, 1.05)
    judge = bench("benchmark_fidelity").judge
    time, repeats = (spread(ratio, ratio, ratio) for ratio in (time_ratio, repeat_ratio))
    assert judge(untraced_us, time, control, repeats, control) == verdict


@pytest.mark.parametrize(
    ("script", "options", "rows"),
    [
        ("launch_overhead", ["--rounds", "1", "--launches", "20"], 30),
        ("benchmark_fidelity", ["--rounds", "1"], 4),
        ("memory", ["--launches", "500"], 2),
        ("at_launch", ["--rounds", "1", "--launches", "20"], 2),
    ],
)
def test_each_script_runs_and_gives_json(
    script: str, options: list[str], rows: int, bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short run says what it measured on, and has all its rows."""
    status = bench("__main__").main([script, *options, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert len(result["rows"]) >= rows  # more where a peer is installed
    assert ("SIMULATOR" in result["machine"]) != ON_GPU
    if not ON_GPU:
        assert status == 0
        assert {row.get("verdict") for row in result["rows"]} <= {None, "equal", "ok", "-"}


def test_the_table_has_a_line_for_each_row(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json a script prints its question, the machine and a table."""
    assert bench("__main__").main(["memory", "--launches", "50"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("How much memory do pending captured launches take?\n")
    assert "identical" in shown
    assert "a fresh tensor each" in shown


def test_scripts_are_listed_with_their_questions(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a name every script is listed, each with a question."""
    assert bench("__main__").main([]) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    names = {line.split()[0] for line in lines}
    assert names >= {"benchmark_fidelity", "launch_overhead", "memory"}
    assert all(line.endswith("?") for line in lines)
