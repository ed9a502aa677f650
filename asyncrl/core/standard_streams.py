"""Standard output and error of a process, which stay open when some code closes the stream."""

from typing import TextIO


def standard_stream(number: int) -> TextIO:
    """Return a text stream that writes to descriptor ``number``. The descriptor stays open when the stream is closed."""
    return open(number, "w", buffering=1, errors="backslashreplace", closefd=False)
