from __future__ import annotations

import sys

import pytest
from trace_lines import args, kernel, launch, nested_args, reading, sample_trace, tensor

from lazytrace._trace.join import Joiner
from lazytrace.errors import MissingDependencyError
from lazytrace.lines import Line, ValuesLine
from lazytrace.records import LaunchRecord, ObjectArg, ScalarArg, TensorStats
from lazytrace.table import launch_table


def records(*lines: Line) -> list[LaunchRecord]:
    joiner = Joiner()
    for line in lines:
        joiner.add(line)
    return joiner.records()


def rows(text: str) -> list[list[str]]:
    return [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]


def test_the_table_shows_launches_and_arguments() -> None:
    """Each argument has a line with its description, its values and when they were read."""
    header, *body = rows(launch_table(records(*sample_trace())))
    assert header[:6] == ["launch", "kernel", "grid", "count", "captured", "argument"]
    assert body[0] == [
        "0", "add_kernel", "6x1x1", "3", "no", "x", "float32", "(2, 3)", "(3, 1)", "", "",
        "pending",
    ]  # fmt: skip
    assert body[4] == [
        "3", "add_kernel", "6x1x1", "1", "graph 4 (bs=8), 3 replays", "x", "float32",
        "(2, 3)", "(3, 1)", "-1", "1", "after_replay 3, overwritten: possible",
    ]  # fmt: skip
    assert [row[5] for row in body[4:8]] == ["x", "out", "n = 6", "BLOCK = 1024"]
    assert [row[0] for row in body[4:8]] == ["3", "", "", ""]


def test_containers_and_their_tensors_are_shown() -> None:
    """A tuple and a descriptor are named, and their tensors have lines of their own."""
    shown = rows(launch_table(records(kernel(), nested_args(), launch(0))))
    assert [row[5] for row in shown[1:]] == [
        "ts = tuple", "ts[0]", "ts[1].left", "desc = descriptor", "desc.base",
    ]  # fmt: skip


def test_non_finite_values_are_told() -> None:
    """The extremes are over finite elements, so the others are counted beside them."""
    bad = reading(values=TensorStats(nan_count=2, posinf_count=1))
    lines = kernel(), args(1, x=tensor()), launch(0), ValuesLine((0,), {"x": bad})
    assert rows(launch_table(records(*lines)))[1][9:11] == ["-", "- (3 not finite)"]


def test_text_of_the_program_cannot_command_the_terminal() -> None:
    """Escapes and markup in names and reprs are shown as they are, and long ones are cut."""
    lines = (
        kernel(name="[bold red]k\x1b[31m\u202e\ud800"),
        args(1, a=ScalarArg("str", "\x1b]0;t\x07"), b=ObjectArg("T", "r\r\n\x9b" + "z" * 500)),
        launch(0),
    )
    text = launch_table(records(*lines))
    assert "[bold red]k\\x1b[31m\\u202e\\ud800" in text
    assert "b = r\\r\\n\\x9bzzz" in text
    assert all(char.isprintable() or char == "\n" for char in text)
    assert max(map(len, text.splitlines())) < 250


def test_an_integer_too_long_to_print_is_no_error() -> None:
    """Python refuses to print integers of thousands of digits; the table says so."""
    lines = kernel(), args(1, n=ScalarArg("int", 1 << 100_000)), launch(0)
    text = launch_table(records(*lines))
    assert "n = (too long)" in text or "n = 9990" in text


def test_no_launches_make_an_empty_table() -> None:
    """Nothing to show is a table of headings."""
    assert len(rows(launch_table([]))) == 1


def test_the_table_fits_a_width() -> None:
    """Given a width, no line is longer."""
    text = launch_table(records(*sample_trace()), width=100)
    assert max(map(len, text.splitlines())) <= 100


def test_without_rich_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich comes with an extra; without it the error names the command."""
    for name in ("rich.box", "rich.console", "rich.table", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r'pip install "lazytrace\[cli\]"'):
        launch_table([])
