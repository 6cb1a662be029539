"""A script's options and its result: a table for people, JSON for programs."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

import attrs

_FIGURES = re.compile(r"[-+]?\d[\d. \[\]]*")


def options(document: str | None, *, rounds: int | None) -> argparse.ArgumentParser:
    """A parser with the options that scripts share."""
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if rounds is not None:
        parser.add_argument("--rounds", type=_positive, default=rounds, help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


@attrs.frozen
class Result:
    """What a script found: ``rows`` are attrs objects, or hold some."""

    question: str
    machine: str
    rounds: int | None
    rows: Sequence[Any]
    notes: Sequence[str] = ()

    def as_json(self) -> str:
        """The whole result as one JSON object."""
        return json.dumps(attrs.asdict(self), indent=2)


def show(result: Result, header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Prints a result as a table: texts to the left, figures to the right."""
    print(f"{result.question}\n{result.machine}")
    print("" if result.rounds is None else f"{result.rounds} interleaved rounds\n")
    lines = [list(header), *(list(row) for row in cells)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    numeric = [all(_FIGURES.fullmatch(row[at]) for row in cells) for at in range(len(header))]
    for number, line in enumerate(lines):
        shown = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric)
        )
        print("  ".join(shown).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    for note in result.notes:
        print(f"\n{note}")
    print()
