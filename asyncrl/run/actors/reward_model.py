"""The reward model as a Ray actor, asked by all generators."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import ray
import torch

from asyncrl.core.recipe.reward import ModelReward
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.actors.output import route_output
from asyncrl.run.reward_folder import check_vocabulary
from learners.reward_model import RewardModel


class RewardModelActor:
    """The model of ``reward``, for the policy in ``model_path``. Methods run one at a time."""

    def __init__(self, recipe: Recipe, reward: ModelReward, model_path: str, log_file: Path) -> None:
        route_output(log_file)
        self._recipe, self._reward, self._model_path = recipe, reward, model_path
        self._model: RewardModel | None = None

    def start(self) -> None:
        """Load the model.

        Raises:
            RecipeError: its folder lacks weights, or it reads other tokens than the policy writes.
        """
        check_vocabulary(self._reward, Path(self._model_path))
        sharing = self._recipe.learner.layout.ranks + self._recipe.generators.count + 1
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // sharing))
        self._model = RewardModel(self._reward, torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def score(self, rows: Sequence[np.ndarray]) -> list[float]:
        """See :meth:`learners.reward_model.RewardModel.score`."""
        if self._model is None:
            raise RuntimeError("the reward model was used before start()")
        return self._model.score(rows)


RemoteRewardModel = ray.remote(RewardModelActor)
