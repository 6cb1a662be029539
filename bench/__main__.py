"""``python -m bench``: lists the scripts, or runs the ones that are named."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path


def scripts() -> dict[str, str]:
    """The question of each script, by name: the first line of its docstring."""
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    modules = {file.stem: importlib.import_module(f"bench.{file.stem}") for file in files}
    return {
        name: (module.__doc__ or "").splitlines()[0]
        for name, module in modules.items()
        if hasattr(module, "main")
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Lists the scripts, or runs one (or ``all``) with the options that follow it."""
    known = scripts()
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("script", nargs="?", choices=[*known, "all"])
    asked, options = parser.parse_known_args(arguments)
    if asked.script is None:
        width = max(map(len, known))
        for name, question in known.items():
            print(f"{name:<{width}}  {question}")
        print("\nRun one with: python -m bench NAME [--rounds N] [--json]; `all` runs every one.")
        return 0
    for name in known if asked.script == "all" else [asked.script]:
        status: int = importlib.import_module(f"bench.{name}").main(options)
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
