"""What a run folder of this machine knows of its copies in object stores, in a hidden file that is not copied there."""

import msgspec

from asyncrl.core.files.whole_file import write_whole
from asyncrl.core.ids import PolicyVersion
from asyncrl.run.folder.run_folder import RunFolder

_NAME = ".storage.json"


class KnownCopies(msgspec.Struct, frozen=True):
    """What is known.

    Attributes:
        name: the run's name in stores; its folder here may have another, if there was one of that name.
        drivers: the token of the last driver on this machine, by address.
        unsettled: the version of the checkpoint that the folder was fetched with, until its journal says what was not fetched.
    """

    name: str
    drivers: dict[str, str] = {}
    unsettled: PolicyVersion | None = None


def read_known_copies(folder: RunFolder) -> KnownCopies:
    """Return what ``folder`` knows."""
    try:
        return msgspec.json.decode((folder.path / _NAME).read_bytes(), type=KnownCopies)
    except (OSError, ValueError):
        return KnownCopies(folder.path.name)


def write_known_copies(folder: RunFolder, known: KnownCopies) -> None:
    """Have ``folder`` know it.

    Raises:
        OSError: the disk refuses.
    """
    write_whole(folder.path / _NAME, msgspec.json.encode(known))


def with_driver(folder: RunFolder, address: str, token: str) -> None:
    """Note that the driver with this token writes to ``address``."""
    known = read_known_copies(folder)
    write_known_copies(folder, msgspec.structs.replace(known, drivers={**known.drivers, address: token}))
