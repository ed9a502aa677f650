"""The reward model as a Ray actor, shared by all generators. The driver imports this too, so torch is imported by the actor."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import ray

from asyncrl.core.process.control_groups import usable_cores
from asyncrl.core.process.long_import import long_import
from asyncrl.core.recipe.reward import ModelRewardConfig
from asyncrl.run.host.actor_process import begin_actor
from asyncrl.run.host.ray_calls import AGAIN
from asyncrl.run.models.further_models import check_vocabulary
from asyncrl.run.nodes.model_folder import ModelFolder

if TYPE_CHECKING:
    from asyncrl.learners.reward_model import RewardModel


class RewardModelActor:
    """Runs the reward model of section ``reward`` for ``policy``. Methods run one at a time.

    Args:
        folder: its own folder.
        sharing: how many other processes share the cores, if all are on one machine.
    """

    def __init__(self, reward: ModelRewardConfig, folder: ModelFolder, policy: ModelFolder, sharing: int, log_file: Path) -> None:
        begin_actor(log_file)
        self._reward, self._folder, self._policy, self._sharing = reward, folder, policy, sharing
        self._model: RewardModel | None = None

    def start(self) -> None:
        """Load the model.

        Raises:
            RecipeError: its folder lacks weights, or its tokenizer lacks a token of the policy or gives it another id.
        """
        with long_import():
            import torch

            from asyncrl.learners.reward_model import RewardModel

        with self._folder.loading() as folder, self._policy.loading() as policy:
            reward = msgspec.structs.replace(self._reward, path=str(folder))
            check_vocabulary(reward, policy)
            torch.set_num_threads(max(1, usable_cores() // (self._sharing + 1)))
            self._model = RewardModel(reward, torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def score(self, rows: Sequence[np.ndarray]) -> list[float]:
        """Return the model's score of each row of token ids."""
        if self._model is None:
            raise RuntimeError("the reward model was used before start()")
        return self._model.score(rows)


RemoteRewardModel = ray.remote(max_task_retries=AGAIN)(RewardModelActor)
