"""What the parsers of commands share, and types of arguments, each of which raises what argparse shows as a usage error."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncrl.core.storage.address import is_address
from asyncrl.core.text import short

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.outcome import ExitCode

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    Run = Callable[[argparse.Namespace, Console], ExitCode]

MOST = 1_000_000_000
"""The largest number that a command takes, as it is the largest count in a recipe."""


def command(
    commands: Commands, name: str, summary: str, description: str, run: Run, *, starts: bool = False, **options: Any
) -> argparse.ArgumentParser:
    """Add a command, whose help is wrapped as ``description`` is.

    Args:
        run: what the command does; errors that it raises are shown by :mod:`asyncrl.cli.main`.
        starts: whether a ``RecipeError`` is a refusal to start something.
        options: further ones of the parser.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=summary, description=description, formatter_class=formatter, **options)
    parser.set_defaults(run=run, starts=starts)
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


class StoredRun(NamedTuple):
    """A run in an object store, which a command only reads.

    Attributes:
        weights: whether the command needs its checkpoints or its trained model.
    """

    address: str
    weights: bool


def run_to_read(text: str, *, weights: bool = False) -> Path | StoredRun:
    """The folder of a run, or the address of one in an object store, which becomes a copy of it before the command begins."""
    return StoredRun(text, weights) if is_address(text) else Path(text)


def run_here(text: str) -> Path:
    """The folder of a run, for a command that needs what object stores do not have of it."""
    if is_address(text):
        raise argparse.ArgumentTypeError(f"{text!r} is in an object store; this needs the run's folder on the machine it ran on")
    return Path(text)


def run_or_address(text: str) -> Path | str:
    """The folder of a run, or the address of one in an object store."""
    return text if is_address(text) else Path(text)


def fetch_runs(arguments: argparse.Namespace) -> None:
    """Put copies on this machine in the place of all runs in object stores.

    Raises:
        RecipeError: there is no such run, or a store refuses.
    """
    for name, value in vars(arguments).items():
        if isinstance(value, StoredRun):
            setattr(arguments, name, _copy(value))
        elif isinstance(value, list):
            setattr(arguments, name, [_copy(each) if isinstance(each, StoredRun) else each for each in value])


def _copy(run: StoredRun) -> Path:
    from asyncrl.run.storage.fetched_run import copy_of

    return copy_of(run.address, weights=run.weights)


def writable_file(text: str) -> Path:
    """The path of a file, which need not be there, in a folder that is."""
    path = Path(text)
    in_circle = os.path.islink(os.path.realpath(path))
    if path.is_dir() or not path.parent.is_dir() or in_circle:
        raise argparse.ArgumentTypeError(f"{text!r} must be a file in a folder that exists")
    return path
