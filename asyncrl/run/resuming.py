"""Whether a run can be resumed, known before anything of it starts."""

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.recipe.schema import AppendOnlyJournal, Recipe
from asyncrl.run.buffer_folder import journal_of
from asyncrl.run.folder import RunFolder
from asyncrl.run.summary import Status, Summary
from buffers.recovery import check_recipe


def check_resumable(recipe: Recipe, folder: RunFolder) -> None:
    """Refuse to resume what cannot be.

    Raises:
        RecipeError: the run keeps no journal, or one that cannot be read, or is another recipe's; or it has completed and is
            not to be longer.
    """
    if not isinstance(recipe.buffer.journal, AppendOnlyJournal):
        raise RecipeError("buffer.journal", f"{folder.path} keeps no journal, so it cannot be resumed", "launch it anew")
    summary = Summary.read(folder.summary) if folder.summary.is_file() else None
    if summary is not None and summary.status is Status.COMPLETED and recipe.steps <= summary.steps:
        problem = f"{folder.path} has completed its {summary.steps} steps, there is nothing to resume"
        raise RecipeError("", problem, f"raise steps in {folder.recipe} to go on with it, or launch a new run")
    journal = journal_of(folder.path)
    if journal.is_dir():
        try:
            check_recipe(recipe, journal)
        except AsyncRLError as error:
            raise RecipeError("", str(error), "nothing of the run was changed") from error
