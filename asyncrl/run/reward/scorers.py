"""Chooses what scores a generator's episodes."""

from collections.abc import Callable, Sequence
from typing import Any

from asyncrl.core.recipe.reward import EnvironmentRewardConfig, ModelRewardConfig, RemoteRewardConfig, RewardConfig
from asyncrl.run.reward.model_scorer import ModelScorer
from asyncrl.run.reward.remote_scorer import RemoteScorer
from generators.scoring import Scoring


def make_scoring(
    reward: RewardConfig,
    seconds: float,
    reward_model: Any | None,
    decode: Callable[[Sequence[int]], str],
    client: str,
) -> Scoring | None:
    """Make what scores a generator's episodes; None if the reward is the environment's own.

    Args:
        seconds: how long the score of an episode may take.
        client: the generator's name.
    """
    match reward:
        case EnvironmentRewardConfig():
            return None
        case ModelRewardConfig():
            return Scoring(ModelScorer(reward_model, client, seconds), reward.environment_weight)
        case RemoteRewardConfig():
            return Scoring(RemoteScorer(reward, decode, seconds), reward.environment_weight)
