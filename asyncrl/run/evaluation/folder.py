"""The folder of an evaluation of models: everything that it leaves behind.

runs/evaluation-quickstart-20260901T120000Z/
    evaluation.json     the scores
    logs/               the log of the command
    1-MODEL/            a folder for each model, as that of a run:
        recipe.yaml     the resolved recipe
        logs/           one file a process
        trajectories/   all episodes, as Parquet files
"""

import os
import re
from datetime import UTC, datetime
from pathlib import Path

from asyncrl.core.files.file_errors import naming, refusing
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import local_run_dir
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.folder.run_folder import RunFolder, claim

_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")


class EvaluationFolder:
    """The paths of one evaluation, all absolute. :meth:`create` makes the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.scores = self.path / "evaluation.json"
        self.logs = self.path / "logs"
        self.weights = self.path / "weights"
        """A Hugging Face folder made of a checkpoint, while its model is evaluated."""

    @classmethod
    def create(cls, recipe: Recipe) -> "EvaluationFolder":
        """Make the folder of an evaluation that starts now.

        Raises:
            RecipeError: ``run_dir`` cannot be written to.
        """
        name = f"evaluation-{recipe.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        with refusing(
            f"make a folder in {recipe.run_dir!r}", "name a folder that you may write to, e.g. with run_dir=runs", "run_dir"
        ):
            folder = cls(claim(local_run_dir(recipe.run_dir), name))
            folder.logs.mkdir()
        return folder

    @property
    def run_id(self) -> str:
        """A name that no other run or evaluation on this machine has at the same time."""
        return f"{self.path.name}-{os.getpid()}"

    def make_model_folder(self, number: int, name: str, recipe: Recipe) -> RunFolder:
        """Make the folder of model ``number``, counted from 1.

        Raises:
            OSError: the disk refuses.
        """
        folder = RunFolder(self.path / f"{number}-{_UNUSUAL.sub('-', name).strip('-')}")
        folder.logs.mkdir(parents=True)
        with naming(folder.recipe):
            folder.recipe.write_text(resolved_yaml(recipe), encoding="utf-8")
        return folder
