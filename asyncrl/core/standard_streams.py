"""Standard output and error of a process, which no code may close for the rest of it."""

from typing import TextIO


def standard_stream(number: int) -> TextIO:
    """Text for descriptor ``number``, which stays open when the stream is closed."""
    return open(number, "w", buffering=1, errors="backslashreplace", closefd=False)
