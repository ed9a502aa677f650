"""Rewards that environments share: equivalence of mathematics, tests of code, a judge, and several with weights."""

from asyncrl.envs.rewards.base import Reward, RewardUnavailable
from asyncrl.envs.rewards.code_tests import CodeTests
from asyncrl.envs.rewards.exact import Exact
from asyncrl.envs.rewards.judge import Endpoint, Judge, Rubric
from asyncrl.envs.rewards.math_reward import MathEquivalence
from asyncrl.envs.rewards.weighted import Weighted

__all__ = ["CodeTests", "Endpoint", "Exact", "Judge", "MathEquivalence", "Reward", "RewardUnavailable", "Rubric", "Weighted"]
