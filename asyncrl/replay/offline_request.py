"""What an offline run was asked to train from, kept in its folder so that it can be resumed."""

import zlib
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.whole_file import write_whole
from asyncrl.replay.recorded_groups import Best, Recorded
from asyncrl.run.folder.run_folder import RunFolder

_FILE = "offline.json"


class OfflineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked.

    Attributes:
        runs: absolute paths of the runs' folders and files of episodes.
        first, last: the steps; None for all later ones.
        count, least: which episodes of each group.
        episodes: tells the episodes that were chosen from others.
    """

    runs: tuple[str, ...]
    first: int
    last: int | None
    count: int | None
    least: float | None
    episodes: int

    @property
    def best(self) -> Best:
        """Which episodes of each group are taken."""
        return Best(self.count, self.least)

    def keep(self, folder: RunFolder) -> None:
        """Keep it in the run's folder."""
        write_whole(folder.path / _FILE, msgspec.json.encode(self))

    def check_same(self, recorded: Recorded) -> None:
        """Refuse episodes that are not those that the run began with.

        Raises:
            RecipeError: they differ.
        """
        if proof_of(recorded) != self.episodes:
            problem = f"{', '.join(self.runs)} no longer hold the episodes that the run was trained from"
            raise RecipeError("--resume", problem, "put them back, or begin a new run")


def proof_of(recorded: Recorded) -> int:
    """Return a checksum of the episodes of all groups, in their order."""
    sums = [(len(group), *(episode.payload.checksum for episode in group)) for group in recorded.groups]
    return zlib.crc32(repr(sums).encode())


def kept_request(folder: RunFolder) -> OfflineRequest:
    """Return what the run in a folder was asked to train from.

    Raises:
        RecipeError: it is no offline run.
    """
    path: Path = folder.path / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=OfflineRequest)
    except FileNotFoundError as error:
        problem = f"{folder.path} was not begun by train-offline"
        raise RecipeError("--resume", problem, f"resume it with `asyncrl launch --resume {folder.path}`") from error
    except msgspec.MsgspecError as error:
        raise RecipeError("--resume", f"{path} cannot be read: {error}", "begin a new run") from error
