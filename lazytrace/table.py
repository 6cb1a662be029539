"""A table of launches for a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from lazytrace.errors import MissingDependencyError
from lazytrace.records import (
    Arg,
    ArgState,
    ConstexprArg,
    FunctionArg,
    LaunchRecord,
    ObjectArg,
    ScalarArg,
    TensorArg,
)

_COLUMNS = (
    "launch", "kernel", "grid", "count", "captured", "argument", "dtype", "shape", "strides",
    "min", "max", "read",
)  # fmt: skip
_MAX_CELL = 60


def launch_table(records: Iterable[LaunchRecord], *, width: int | None = None) -> str:
    """The launches with their arguments, as plain text ``width`` characters wide.

    A launch has one line for each argument. ``captured`` names the CUDA graph that a launch was
    captured in, and how often that was replayed so far. ``read`` says when a tensor's values were
    read, or why they were not. Without ``width`` the table is as wide as it needs to be. Text of
    the traced program is shown with its control characters escaped. Raises MissingDependencyError
    without rich.
    """
    try:
        from rich.box import ASCII2
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise MissingDependencyError(
            'the table needs rich: pip install "lazytrace[cli]"'
        ) from error
    table = Table(*_COLUMNS, box=ASCII2)
    for record in records:
        for row in _rows(record):
            table.add_row(*(Text(_printable(cell)) for cell in row))
        table.add_section()
    output = io.StringIO()
    console = Console(file=output, width=width or 10_000, no_color=True, legacy_windows=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()) + "\n"


def _rows(record: LaunchRecord) -> list[tuple[str, ...]]:
    grid = "x".join(map(str, record.grid))
    launch = (str(record.id), record.kernel.name, grid, str(record.count), _captured(record))
    args = [_cells(path, arg) for path, arg in record.args.items()] or [("",) * 7]
    blank = ("",) * len(launch)
    return [(*(launch if not row else blank), *cells) for row, cells in enumerate(args)]


def _captured(record: LaunchRecord) -> str:
    capture = record.capture
    if capture is None:
        return "no"
    graph = f"graph {capture.graph}" + (f" ({capture.name})" if capture.name else "")
    replays = f"{record.replays} replay" + ("s" if record.replays != 1 else "")
    return f"{graph}, {replays if record.replays else record.state.value}"


def _cells(path: str, arg: Arg) -> tuple[str, ...]:
    if isinstance(arg, TensorArg):
        low, high = _extremes(arg)
        return (path, arg.dtype, _sizes(arg.shape), _sizes(arg.strides), low, high, _read(arg))
    return (f"{path} = {_value(arg)}", arg.type, "", "", "", "", "")


def _value(arg: Arg) -> str:
    if isinstance(arg, (ScalarArg, ConstexprArg)):
        try:
            return repr(arg.value)
        except ValueError:  # Python refuses to print an integer of thousands of digits
            return "(too long)"
    if isinstance(arg, ObjectArg):
        return arg.repr
    if isinstance(arg, FunctionArg):
        return arg.name
    return arg.kind.value


def _sizes(numbers: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, numbers)) + ("," if len(numbers) == 1 else "") + ")"


def _extremes(arg: TensorArg) -> tuple[str, str]:
    stats = arg.values
    if stats is None:
        return "", ""
    bad = stats.nan_count + stats.posinf_count + stats.neginf_count
    note = f" ({bad} not finite)" if bad else ""
    return _number(stats.min), _number(stats.max) + note


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _read(arg: TensorArg) -> str:
    seen = arg.observed
    if arg.state is not ArgState.MATERIALIZED or seen is None:
        return arg.state.value + (f": {arg.reason}" if arg.reason else "")
    replay = "" if seen.replay is None else f" {seen.replay}"
    return f"{seen.point.value}{replay}, overwritten: {seen.overwritten.value}"


def _printable(text: str) -> str:
    """The text, cut, with escapes for what a terminal would obey or could not show."""
    cut = text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 3] + "..."
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut
    )
