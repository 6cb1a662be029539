"""``python -m lazytrace``: finds the command that was asked for, and runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lazytrace._demo import command as demo
from lazytrace._version import __version__
from lazytrace.errors import LazytraceError

_USAGE_ERROR = 2
_INTERRUPTED = 130  # what a shell reports of a program that SIGINT ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 2 if it could not be done as asked."""
    asked = _parser().parse_args(arguments)
    try:
        status: int = asked.run(asked)
    except LazytraceError as error:
        print(f"lazytrace: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except KeyboardInterrupt:
        print("lazytrace: interrupted", file=sys.stderr)
        return _INTERRUPTED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lazytrace",
        description="Traces Triton kernel launches, also inside CUDA graph capture.",
    )
    parser.add_argument("--version", action="version", version=f"lazytrace {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
