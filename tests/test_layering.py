"""The rooms of DESIGN: which module may import which."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lazytrace

ROOT = Path(lazytrace.__file__).parent

VOCABULARY = {"errors", "config", "arguments", "records", "problems", "lines", "_version"}
CAPTURE = {
    "_hooks",
    "_recorder",
    "_describe",
    "_views",
    "_recognise",
    "_repeat",
    "_opaque",
    "_kernels",
    "_call_site",
    "_roles",
    "_ttir",
    "_ssa",
    "_provenance",
    "_graphs",
    "_pending",
    "_probes",
    "_probes_placing",
    "_write_index",
    "_patches",
    "_containment",
    "_runtime",
}
COMPLETION = {
    "_cuda",
    "_cuda_runtime",
    "_torch_state",
    "_sync",
    "_completion",
    "_flush",
    "_probes_cuda",
    "_probes_flush",
    "_probes_reading",
    "_slots",
    "_reading",
    "_journal",
    "_problem_log",
    "_overwrites",
    "_non_finite",
    "_leftovers",
    "_blobs",
    "_view_bytes",
    "_cuda_bytes",
    "_statistics",
}
OUTPUT = {"codec", "_plain", "_forms", "join", "sink", "ndjson", "reader", "table"}
ASSEMBLY = {"_assembly", "_tracer", "_process", "_api", "_simulator", "testing", "__init__"}
ASSEMBLY |= {"__main__", "_demo"}

ROOMS = {
    "VOCABULARY": (VOCABULARY, VOCABULARY),
    "CAPTURE": (CAPTURE, VOCABULARY | CAPTURE),
    "COMPLETION": (COMPLETION, VOCABULARY | CAPTURE | COMPLETION | {"sink"}),
    "OUTPUT": (OUTPUT, VOCABULARY | OUTPUT),
}


def _module(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imported(path: Path) -> set[str]:
    """The top-level rooms of lazytrace that a file imports, type-checking imports included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "lazytrace":
                names = [f"lazytrace.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("lazytrace.")}
    return found


def test_every_module_has_a_room() -> None:
    """A new module must be given its place in the table."""
    known = VOCABULARY | CAPTURE | COMPLETION | OUTPUT | ASSEMBLY
    assert {_module(path) for path in ROOT.rglob("*.py")} <= known


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_down_only(room: str) -> None:
    """No module imports from a room that its own may not see."""
    members, allowed = ROOMS[room]
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in ROOT.rglob("*.py")
        if _module(path) in members
        for name in _imported(path)
        if name not in allowed and name != _module(path)
    }
    assert wrong == set()


def test_reading_a_trace_imports_neither_torch_nor_triton() -> None:
    """The offline side works where neither is installed."""
    code = "import lazytrace, lazytrace.reader, sys; print({'torch', 'triton'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_all_is_sorted_and_importable() -> None:
    """``__all__`` is the public API, sorted, and every name of it exists."""
    assert lazytrace.__all__ == sorted(lazytrace.__all__)
    assert all(hasattr(lazytrace, name) for name in lazytrace.__all__)


def test_no_module_is_over_four_hundred_lines() -> None:
    """A module that has grown past 400 lines is to be split."""
    long = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in ROOT.rglob("*.py")
        if len(path.read_text().splitlines()) > 400
    }
    assert long == {}
