"""The folder that a run was launched in: where the relative paths and the modules of its recipe are looked for.

A run can be resumed and looked into from anywhere. If its project has moved since, the user names its new folder.
"""

from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.run.folder.run_folder import RunFolder


@contextmanager
def in_launch_directory(folder: RunFolder, instead: Path | None = None) -> Iterator[None]:
    """Work in the folder that the run was launched in, or in ``instead``; in the current one if that is gone.

    Raises:
        RecipeError: ``instead`` is not a folder. An error about a recipe key gets a note that says where it was looked for.
    """
    recorded = folder.launched_in
    if instead is not None and not instead.is_dir():
        raise RecipeError("", f"{str(instead)!r} is not a folder", "name the folder in which the recipe's relative paths begin")
    place = instead or (recorded if recorded is not None and recorded.is_dir() else Path())
    with chdir(place):
        here = Path.cwd()
        try:
            yield
        except RecipeError as error:
            if not error.place or error.place.startswith("--"):
                raise  # not about what the recipe names
            gone = f" ({recorded}, where the run was launched, is gone)" if recorded is not None and not recorded.is_dir() else ""
            error.add_note(
                f"relative paths of its recipe begin in {here}{gone}; `launch --resume RUN --from FOLDER` names another"
            )
            raise
