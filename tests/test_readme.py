from __future__ import annotations

import contextlib
import io
import re
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest

from lazytrace.testing import simulate

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.rst").read_text()

_BLOCK = re.compile(r"^\.\. code-block:: (\w+)\n\n((?:(?:    .*)?\n)+)", re.MULTILINE)
_TRACE_FILE = re.compile(r"[\w.-]+\.\d+\.ndjson")
_COMMANDS = (
    'python -m pip install -e ".[torch,sim,cli]" && python -m lazytrace demo',
    'python -m pip install -e ".[test]" && python -m pytest',
)


in_a_checkout = pytest.mark.skipif(
    not (ROOT / ".ci" / "run").exists(), reason="a source distribution holds no .ci"
)


@attrs.frozen
class Example:
    """A code block of the README, and the output shown below it."""

    code: str
    output: str


def examples() -> list[Example]:
    """The Python blocks in order, each with the text block that follows it at once."""
    found: list[Example] = []
    for language, indented in _BLOCK.findall(README):
        text = re.sub(r"^    ", "", indented, flags=re.MULTILINE).rstrip() + "\n"
        if language == "python":
            found.append(Example(text, ""))
        else:
            found[-1] = attrs.evolve(found[-1], output=text)
    return found


def run(code: str, file: Path, namespace: dict[str, Any]) -> str:
    """Runs a block from a file, where Triton finds its kernels' source; returns what it printed."""
    file.write_text(code)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(file), "exec", dont_inherit=True), namespace)
    return "".join(line.rstrip() + "\n" for line in printed.getvalue().rstrip().splitlines())


def test_the_examples_run_and_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block runs in the simulator, one after the other, and gives the README's output."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "readme"}
    shown = examples()
    assert sum('device = "cuda"\n' in example.code for example in shown) == 1
    with simulate():
        for number, example in enumerate(shown):
            code = example.code.replace('device = "cuda"\n', 'device = "cpu"\n')
            printed = run(code, tmp_path / f"block_{number}.py", namespace)
            assert _TRACE_FILE.sub("TRACE", printed) == _TRACE_FILE.sub("TRACE", example.output)
    namespace["test_my_kernel_can_be_captured"]()


@in_a_checkout
def test_the_two_commands_are_those_of_the_check() -> None:
    """People and CI install, run and test by the same two lines."""
    check = (ROOT / ".ci" / "run").read_text()
    for command in _COMMANDS:
        assert f"\n    {command}\n" in README
        assert f"\nstep '{command}'\n" in check


def test_every_option_of_the_table_exists() -> None:
    """The options and their defaults are those of the Options class."""
    from lazytrace.config import Options

    table = README.split("\nOptions\n-------\n")[1].split("\nWhat a bound drops")[0]
    rows = re.findall(r"^``(\w+)``\s+``(.+?)``\s", table, re.MULTILINE)
    defaults = attrs.asdict(Options())
    assert len(rows) >= 14
    for name, default in rows:
        assert defaults[name] == eval(default), name


def test_every_line_type_of_the_table_is_written() -> None:
    """The file's line types are those that the codec writes."""
    from lazytrace import lines

    table = README.split("\nThe file\n--------\n")[1].split("\nThe simulator\n")[0]
    types = set(re.findall(r"^``(\w+)``", table, re.MULTILINE))
    written = {
        n.removesuffix("Line").lower() for n in vars(lines) if re.fullmatch("[A-Z]\\w+Line", n)
    }
    assert types == written | {"session"}


@in_a_checkout
def test_the_check_is_valid_bash() -> None:
    """.ci/run can be parsed and is executable."""
    check = ROOT / ".ci" / "run"
    assert check.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(check)], check=True)
