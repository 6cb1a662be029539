from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import lazytrace
from lazytrace.__main__ import main
from lazytrace.arguments import ArgState, TensorArg

KERNELS = ["vector_add", "fused_softmax", "matmul"]


def test_the_demo_shows_and_writes_what_was_launched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every benchmark has an eager and a captured run, whose values are in table and file."""
    assert main(["demo", "-o", str(tmp_path / "traces")]) == 0
    shown = capsys.readouterr().out
    (file,) = (tmp_path / "traces").iterdir()
    trace = lazytrace.read(file)
    assert [record.kernel.name for record in trace.records(captured=False)] == KERNELS
    captured = trace.records(captured=True)
    assert [record.kernel.name for record in captured] == KERNELS
    assert all(record.replays == 10 for record in captured)
    tensors = [a for record in captured for a in record.args.values() if isinstance(a, TensorArg)]
    assert {tensor.state for tensor in tensors} == {ArgState.MATERIALIZED}
    assert f"Trace: {file}" in shown
    assert shown.count("10 replays") == 3
    assert shown.count("| after_replay 1, overwritten: ") == len(tensors)
    assert trace.complete
    assert not trace.problems


@pytest.mark.core
def test_the_demo_computes_what_torch_computes(simulated: Any) -> None:
    """The kernels are right: sum, softmax and product agree with torch's."""
    import torch

    from lazytrace._demo.workloads import SIMULATED, workloads

    held = workloads(SIMULATED, "cpu")
    with lazytrace.trace() as tracer:
        for workload in held:
            workload.launch()
        added, normalised, product = tracer.records()
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(1000, generator=generator) for _ in range(2))
    rows = torch.randn(4, 48, generator=generator)
    a, b = (torch.randn(32, 32, generator=generator) for _ in range(2))
    for arg, expected in (
        (added.args["out"], x + y),
        (normalised.args["out"], rows.softmax(1)),
        (product.args["c"], a @ b),
    ):
        assert arg.values.max == pytest.approx(float(expected.max()), rel=1e-2)
        assert arg.values.mean == pytest.approx(float(expected.mean()), rel=1e-2, abs=1e-3)


def test_times_are_shown_on_a_gpu_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The simulator's clock is virtual, so the demo says so and shows no time."""
    import torch

    assert main(["demo", "--out", str(tmp_path / "trace.ndjson")]) == 0
    shown = capsys.readouterr().out
    on_gpu = torch.version.cuda is not None and torch.cuda.is_available()
    assert (" us\n" in shown) == on_gpu
    assert ("clock is virtual" in shown) == (not on_gpu)


@pytest.mark.parametrize("package", ["torch", "triton", "rich"])
def test_a_missing_package_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a package the demo says what to install, and its status is 2."""
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["demo"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"lazytrace: the demo needs {package}: python -m pip install ")


def test_an_existing_file_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An output that exists is an error of ours with status 2, and stays as it is."""
    taken = tmp_path / "taken.ndjson"
    taken.write_text("mine")
    assert main(["demo", "-o", str(taken)]) == 2
    assert str(taken) in capsys.readouterr().err
    assert taken.read_text() == "mine"


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the usage is printed, with status 2."""
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_an_interruption_leaves_no_traceback(tmp_path: Path) -> None:
    """Ctrl-C ends the demo with one line and the shell's status for it."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "lazytrace", "demo", "-o", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert demo.stdout is not None
    assert demo.stdout.readline().startswith("lazytrace ")  # it has begun
    threading.Timer(0.2, demo.send_signal, [signal.SIGINT]).start()
    _, complaint = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert complaint == "lazytrace: interrupted\n"
