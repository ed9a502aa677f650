"""What a generator worker takes from the recipe."""

from collections.abc import Mapping

import msgspec

from asyncrl.core.recipe.algorithm import TurnCreditConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.generators.episode import EpisodeLimits


class WorkerSettings(msgspec.Struct, frozen=True):
    """The settings of a worker that come from the recipe.

    Attributes:
        limits, evaluation_limits: by member of the environment, the limits of training episodes, and of those of evaluations.
        trained_roles: by member of the environment, the roles that are trained; None for all.
        credits_turns: whether turns are credited, so that an episode must have one trajectory.
        max_running: most episodes that the worker plays at once.
        group_size: samples of each task.
        engine_s: seconds that the engine may take to say what it has to do.
        lease_s: seconds of silence after which the buffer gives up a worker.
        greedy_sample: index of the sample of each group that is played at temperature 0; None if there is none.
        reward_names: rewards that each episode must have.
        evaluation_attempts: how often an evaluation task may break its environment before it is left out.
    """

    limits: Mapping[str, EpisodeLimits]
    evaluation_limits: Mapping[str, EpisodeLimits]
    max_running: int
    group_size: int
    engine_s: float
    lease_s: float
    greedy_sample: int | None
    reward_names: tuple[str, ...]
    evaluation_attempts: int
    trained_roles: Mapping[str, tuple[str, ...] | None]
    credits_turns: bool

    @classmethod
    def of(cls, recipe: Recipe) -> "WorkerSettings":
        """Take the settings from a recipe."""
        members = recipe.environment.by_member
        return cls(
            limits={member: EpisodeLimits.of(recipe, member) for member in members},
            evaluation_limits={member: EpisodeLimits.for_evaluation(recipe, member) for member in members},
            max_running=recipe.generators.max_running,
            group_size=recipe.batch.group_size,
            engine_s=recipe.deadlines.publish,
            lease_s=recipe.deadlines.lease,
            greedy_sample=recipe.algorithm.greedy_sample,
            reward_names=recipe.algorithm.reward_names,
            evaluation_attempts=recipe.buffer.max_attempts,
            trained_roles={name: None if member.train == "all" else member.train for name, member in members.items()},
            credits_turns=isinstance(recipe.algorithm.credit, TurnCreditConfig),
        )
