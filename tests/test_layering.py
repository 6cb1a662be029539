"""The rooms of the package: which may import which, when the code runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lazytrace

ROOT = Path(lazytrace.__file__).parent

VOCABULARY = {"arguments", "config", "errors", "lines", "problems", "records", "_version"}
ASSEMBLY = {"__init__", "__main__", "_api", "_assembly", "_demo", "_process", "_simulator"}
ASSEMBLY |= {"_tracer", "testing"}

# What each room may import besides the vocabulary and itself. The capture side sees the device
# only through its interface; the output side knows neither torch nor triton.
ROOMS = {
    "vocabulary": (VOCABULARY, VOCABULARY),
    "roles": ({"_roles"}, set()),
    "capture": ({"_capture"}, {"_roles", "_device.runtime", "_probes.placing"}),
    "statistics": ({"_statistics"}, {"_device.cuda_driver"}),
    "device": (
        {"_device"},
        {"_capture.views", "_capture.opaque", "_statistics", "_probes.cuda", "_values.view_bytes"},
    ),
    "values": ({"_values"}, {"_capture", "_device.runtime", "_trace.sink"}),
    "probes": ({"_probes"}, {"_capture", "_device", "_statistics", "_values"}),
    "output": ({"_trace", "reader", "table"}, {"_trace", "reader"}),
}


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imported(path: Path) -> Iterator[str]:
    """The modules of lazytrace that a file imports when it runs, as ``_room.module``."""
    for node in _running(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("lazytrace"):
            continue
        inside = (node.module or "").partition(".")[2]
        if inside.count(".") or (inside and not (ROOT / inside).is_dir()):
            yield inside
        else:
            yield from (f"{inside}.{alias.name}".lstrip(".") for alias in node.names)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below, without those that only a type checker sees."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
            continue
        yield child
        yield from _running(child)


def _allowed(module: str, rooms: set[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def test_every_module_has_a_room() -> None:
    """A new module must be given its place in the table."""
    known = ASSEMBLY.union(*(members for members, _ in ROOMS.values()))
    assert {_room(path) for path in ROOT.rglob("*.py")} == known


@pytest.mark.parametrize("room", ROOMS)
def test_imports_follow_the_table(room: str) -> None:
    """No module imports from a room that its own may not see."""
    members, others = ROOMS[room]
    allowed = VOCABULARY | members | others
    wrong = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in ROOT.rglob("*.py")
        if _room(path) in members
        for module in _imported(path)
        if not _allowed(module, allowed)
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
