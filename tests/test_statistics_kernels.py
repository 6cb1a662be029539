"""The kernels without a GPU: their logic in Triton's interpreter, their compilation for one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from triton.backends.compiler import GPUTarget

from lazytrace._statistics.compiled import compile_for, stages_of
from lazytrace._statistics.launch_engine import launch_stage

_TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("script", "last_line"),
    [
        ("statistics_interpreted.py", "28 cases, 0 wrong, few launches"),
        ("statistics_launch_interpreted.py", "25 cases, 0 wrong"),
    ],
)
def test_interpreted_kernels_agree_with_the_reference(script: str, last_line: str) -> None:
    """Random views of every dtype; a process of its own, for the interpreter replaces Triton's."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    path = os.pathsep.join([str(_TESTS.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(_TESTS / script), "3", "1"],
        env={**environment, "PYTHONPATH": path.rstrip(os.pathsep)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == [last_line], done.stdout + done.stderr


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8", "int64"])
def test_bulk_kernels_compile_for_a_gpu(dtype: str) -> None:
    """The assembly is made, and reads 16 bytes a thread."""
    bulk = stages_of(dtype, 90).bulk
    assert bulk is not None
    ptx = compile_for(bulk, GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert any("ld.global" in line and ".v4" in line for line in ptx.splitlines()) or (
        "ld.global.v2.b64" in ptx
    )


def test_exact_and_launch_kernels_compile_for_a_gpu() -> None:
    """One exact kernel, and the node's kernel with its rows as parameters."""
    target = GPUTarget("cuda", 90, 32)
    for stage in (stages_of("float64", 90).exact, launch_stage(True)):
        assert "cubin" in compile_for(stage, target).asm


@pytest.mark.parametrize("capability", [80, 90])
def test_older_devices_decode_float8_by_hand(capability: int) -> None:
    """Triton converts float8_e4m3fn from compute capability 8.9 on only."""
    exact = stages_of("float8_e4m3fn", capability).exact
    assert exact.constants["FORMAT"] == ("float8_e4m3fn" if capability == 80 else "float8")
