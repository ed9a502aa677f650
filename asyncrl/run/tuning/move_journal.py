"""The journal of the moves of section ``tune``, ``RUN/tuning.jsonl``: what is done is written down first.

What always holds: a line that a kill cut off counts as none, so what it says was not begun; a resumed run goes on in the file.
"""

import logging
from pathlib import Path

import msgspec

from asyncrl.core.files.line_files import append_line, numbered_lines
from asyncrl.core.tuning.moves import Line

logger = logging.getLogger(__name__)

_decoder = msgspec.json.Decoder(Line)


class MoveJournal:
    """The file at ``path``, which need not be there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, line: Line) -> None:
        """Write a line down.

        Raises:
            OSError: the disk refuses.
        """
        append_line(self._path, msgspec.json.encode(line))

    def read(self) -> list[Line]:
        """Read all lines, in order."""
        lines: list[Line] = []
        for number, text in numbered_lines(self._path):
            try:
                lines.append(_decoder.decode(text))
            except msgspec.DecodeError as error:
                logger.warning("line %d of %s counts as none: %s", number, self._path, error)
        return lines
