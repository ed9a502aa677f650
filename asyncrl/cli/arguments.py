"""Types of command-line arguments that several commands take; each raises what argparse shows as a usage error."""

import argparse
from pathlib import Path

from asyncrl.core.text import short

MOST = 1_000_000_000
"""The largest number that a command takes, as it is the largest count in a recipe."""


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
