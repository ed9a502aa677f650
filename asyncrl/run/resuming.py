"""Whether a run can be resumed, known before anything of it starts."""

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import AppendOnlyJournal, Recipe
from asyncrl.run.folder import RunFolder
from asyncrl.run.summary import Status, Summary


def check_resumable(recipe: Recipe, folder: RunFolder) -> None:
    """Refuse to resume what cannot be.

    Raises:
        RecipeError: the run keeps no journal, or has completed.
    """
    if not isinstance(recipe.buffer.journal, AppendOnlyJournal):
        raise RecipeError("buffer.journal", f"{folder.path} keeps no journal, so it cannot be resumed", "launch it anew")
    if folder.summary.is_file() and Summary.read(folder.summary).status is Status.COMPLETED:
        raise RecipeError("", f"{folder.path} has completed, there is nothing to resume", "launch a new run")
