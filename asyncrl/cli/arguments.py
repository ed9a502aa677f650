"""Types of command-line arguments that several commands take; each raises what argparse shows as a usage error."""

import argparse
from pathlib import Path


def whole_number(text: str, least: int = 0) -> int:
    """A whole number of at least ``least``."""
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
    return int(text)


def count(text: str) -> int:
    """A whole number of at least 1."""
    return whole_number(text, 1)


def writable_file(text: str) -> Path:
    """The path of a file, which need not be there, in a folder that is."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} must be a file in a folder that exists")
    return path
