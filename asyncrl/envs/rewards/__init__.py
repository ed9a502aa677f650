"""Rewards that environments share: equivalence of mathematics, a judge, and several with weights."""

from asyncrl.envs.rewards.base import Reward, RewardUnavailable
from asyncrl.envs.rewards.exact import Exact
from asyncrl.envs.rewards.judge import Judge
from asyncrl.envs.rewards.math_equivalence import MathEquivalence
from asyncrl.envs.rewards.weighted import Weighted

__all__ = ["Exact", "Judge", "MathEquivalence", "Reward", "RewardUnavailable", "Weighted"]
