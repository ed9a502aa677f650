"""The run folder: everything one run leaves behind, in one place.

    runs/quickstart-20260901T120000Z/
        recipe.yaml     the resolved recipe, every key
        summary.json    how the run ended
        mlflow.db       metrics, unless the recipe names another tracking server
        artifacts/      what MLflow keeps as files
        logs/           one file a process
        model/          the trained model, a Hugging Face folder

A folder belongs to exactly one run: it is made by that run, atomically, and never reused.
"""

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.compose import resolved_yaml


class RunFolder:
    """Paths of one run; all absolute. :meth:`create` makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.recipe = self.path / "recipe.yaml"
        self.summary = self.path / "summary.json"
        self.database = self.path / "mlflow.db"
        self.artifacts = self.path / "artifacts"
        self.logs = self.path / "logs"
        self.model = self.path / "model"

    @classmethod
    def create(cls, recipe: Recipe) -> "RunFolder":
        """Make the folder of a run that starts now, and write its recipe there.

        Raises:
            RecipeError: ``run_dir`` cannot be written to.
        """
        try:
            folder = cls(_claim(Path(recipe.run_dir), f"{recipe.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"))
            folder.logs.mkdir()
            folder.recipe.write_text(resolved_yaml(recipe), encoding="utf-8")
        except OSError as error:
            problem = f"cannot make a run folder in {recipe.run_dir!r}: {error.strerror}"
            raise RecipeError("run_dir", problem, "name a folder that you may write to, e.g. with run_dir=runs") from error
        return folder


def _claim(parent: Path, name: str) -> Path:
    """Make the first of ``name``, ``name-2``, ``name-3``... that is not there yet; ``mkdir`` lets only one process win each."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("count() never ends")
