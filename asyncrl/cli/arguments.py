"""What the parsers of commands share, and types of arguments, each of which raises what argparse shows as a usage error."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.core.text import short

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.outcome import ExitCode

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    Run = Callable[[argparse.Namespace, Console], ExitCode]

MOST = 1_000_000_000
"""The largest number that a command takes, as it is the largest count in a recipe."""


def command(commands: Commands, name: str, summary: str, description: str, run: Run, **options: Any) -> argparse.ArgumentParser:
    """Add a command, whose help is wrapped as ``description`` is.

    Args:
        run: what the command does; errors that it raises are shown by :mod:`asyncrl.cli.main`.
        options: further ones of the parser.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=summary, description=description, formatter_class=formatter, **options)
    parser.set_defaults(run=run)
    return parser


def whole_number(text: str, least: int = 0, most: int = MOST) -> int:
    """A whole number of at least ``least`` and at most ``most``."""
    digits = text.lstrip("0") or text[-1:]
    plain = text.isascii() and text.isdigit() and len(digits) <= len(str(most))
    if not plain or not least <= int(digits) <= most:
        raise argparse.ArgumentTypeError(f"{short(text)} must be a whole number from {least:,} to {most:,}")
    return int(digits)


def count(text: str) -> int:
    """A whole number of at least 1."""
    return whole_number(text, 1)


def writable_file(text: str) -> Path:
    """The path of a file, which need not be there, in a folder that is."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} must be a file in a folder that exists")
    return path
