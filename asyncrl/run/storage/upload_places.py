"""Where a run's files go besides its folder, according to its recipe, and all uploads of it together."""

import time
from collections.abc import Callable, Sequence

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.trajectories import NoTrajectoriesConfig
from asyncrl.core.storage.address import is_address, joined
from asyncrl.core.storage.errors import StorageError
from asyncrl.core.storage.storage import Storage
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.storage.driver_mark import read_mark
from asyncrl.run.storage.known_copies import read_known_copies
from asyncrl.run.storage.upload import Upload, Wanted


def addresses(recipe: Recipe) -> dict[str, str]:
    """The addresses of object stores that the recipe names for what a run writes, by key."""
    keep = recipe.tracking.trajectories
    episodes = None if isinstance(keep, NoTrajectoriesConfig) else keep.dir
    named = {"run_dir": recipe.run_dir, "checkpoint.dir": recipe.checkpoint.dir, "tracking.trajectories.dir": episodes}
    return {key: address for key, address in named.items() if address is not None and is_address(address)}


def resumed_from(recipe: Recipe, name: str) -> tuple[str, str] | None:
    """Return the address from which a run of this name is resumed, and that of its checkpoints; None if it is in no store."""
    named = addresses(recipe)
    places = [named[key] for key in ("run_dir", "checkpoint.dir") if key in named]
    return (joined(places[0], name), joined(places[-1], name)) if places else None


def check_addresses(recipe: Recipe) -> None:
    """Refuse what could not be written to.

    Raises:
        RecipeError: a store refuses to be written to, read or listed there, or what must be an address is none.
    """
    keep = recipe.tracking.trajectories
    episodes = None if isinstance(keep, NoTrajectoriesConfig) else keep.dir
    for key, named in {"checkpoint.dir": recipe.checkpoint.dir, "tracking.trajectories.dir": episodes}.items():
        if named is not None and not is_address(named):
            remedy = "name an address such as s3://BUCKET/FOLDER or file:///FOLDER; folders of this machine go with run_dir"
            raise RecipeError(key, f"{named!r} is no address", remedy)
    for key, address in addresses(recipe).items():
        try:
            Storage(address).check_writable()
        except StorageError as error:
            raise error.of_key(key) from error


def _wanted(key: str, named: Sequence[str]) -> Wanted:
    match key:
        case "run_dir":
            return Wanted("checkpoint.dir" not in named, "tracking.trajectories.dir" not in named, True)
        case "checkpoint.dir":
            return Wanted(True, False, False)
        case _:
            return Wanted(False, True, False)


def check_not_elsewhere(recipe: Recipe, folder: RunFolder) -> None:
    """Refuse to go on with a run in a folder of this machine if it was gone on with from elsewhere since.

    Raises:
        RecipeError: it was, or a store refuses.
    """
    known = read_known_copies(folder)
    for key, address in addresses(recipe).items():
        at = joined(address, known.name)
        try:
            mark = read_mark(Storage(at))
        except StorageError as error:
            raise error.of_key(key) from error
        if at in known.drivers and mark is not None and mark.token != known.drivers[at]:
            problem = f"the run in {folder.path} was gone on with by process {mark.process} on {mark.machine.partition(' ')[0]}"
            raise RecipeError("", problem, f"resume it from where that one has put it: --resume {at}")


class Uploads:
    """All uploads of one run; none, where its recipe names no address."""

    def __init__(self, recipe: Recipe, folder: RunFolder, note: Callable[[str], None]) -> None:
        name, named = read_known_copies(folder).name, addresses(recipe)
        self._uploads = [
            Upload(folder, Storage(joined(address, name)), _wanted(key, tuple(named)), recipe.checkpoint.keep, note)
            for key, address in named.items()
        ]
        self.with_checkpoints = bool(named.keys() & {"run_dir", "checkpoint.dir"})
        """Whether checkpoints are uploaded, and need a copy of the journal."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the run is uploaded to."""
        return tuple(upload.address for upload in self._uploads)

    def start(self) -> None:
        """Begin. Raises ``StorageError`` if a store refuses."""
        for upload in self._uploads:
            upload.start()

    def wake(self) -> None:
        """Something that matters is new in the run folder."""
        for upload in self._uploads:
            upload.wake()

    def check(self) -> None:
        """Raise ``RunTakenOver`` if another driver has the run."""
        for upload in self._uploads:
            upload.check()

    def finish(self, seconds: float) -> None:
        """Upload the rest within ``seconds``; see :meth:`Upload.finish`."""
        until = time.monotonic() + seconds
        for upload in self._uploads:
            upload.wind_up()
        for upload in self._uploads:
            upload.finish(max(0.1, until - time.monotonic()))
