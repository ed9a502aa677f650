"""Functions as a user would write them, that compute what built-in kinds compute."""

import torch

from asyncrl.core.recipe.algorithm import AlgorithmConfig
from asyncrl.core.recipe.correction import CorrectionConfig
from asyncrl.core.recipe.custom import (
    CustomAdvantageConfig,
    CustomAggregationConfig,
    CustomLossConfig,
    CustomScheduleConfig,
    CustomWeightConfig,
)
from asyncrl.learners.algorithm.advantages import Returns
from asyncrl.learners.algorithm.segments import Segments
from asyncrl.learners.custom.inputs import AggregationInputs, LossInputs, ScheduleInputs, WeightInputs


def grpo(returns: Returns) -> torch.Tensor:
    groups = Segments(returns.group, int(returns.group.max()) + 1)
    size = groups.sums(torch.ones_like(returns.values))
    centred = returns.values - (groups.sums(returns.values) / size)[returns.group]
    deviation = (groups.sums(centred.square()) / size).sqrt()[returns.group]
    return torch.where(deviation > 1e-9, centred / torch.where(deviation > 1e-9, deviation, 1.0), 0.0)


def ppo_clip(tokens: LossInputs, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    ratio = tokens.log_ratio.exp()
    free, held = ratio * tokens.advantages, ratio.clamp(1.0 - low, 1.0 + high) * tokens.advantages
    return -torch.minimum(free, held), held < free


def gspo(tokens: LossInputs, low: float, high: float) -> torch.Tensor:
    mean = tokens.rows.means(tokens.log_ratio.detach(), tokens.mask)[tokens.rows.index]
    ratio = mean.exp() * (1.0 + tokens.log_ratio - tokens.log_ratio.detach())
    return -torch.minimum(ratio * tokens.advantages, ratio.clamp(1.0 - low, 1.0 + high) * tokens.advantages)


def sequence_mean(rows: AggregationInputs) -> tuple[torch.Tensor, float]:
    return 1.0 / rows.loss_tokens.clamp(min=1).double(), float(rows.weights[rows.loss_tokens > 0].sum())


def importance(tokens: WeightInputs) -> torch.Tensor:
    return tokens.log_ratio.exp()


def linear(at: ScheduleInputs) -> float:
    if at.step < at.warmup_steps:
        return at.lr * (at.step + 1) / at.warmup_steps
    done = min(1.0, (at.step - at.warmup_steps) / max(1, at.steps - 1 - at.warmup_steps))
    return at.lr * (1.0 - (1.0 - at.min_lr_ratio) * done)


OWN = AlgorithmConfig(
    advantage=CustomAdvantageConfig(name="own_functions:grpo"),
    loss=CustomLossConfig(name="own_functions:ppo_clip", options={"low": 0.2, "high": 0.28}),
    aggregation=CustomAggregationConfig(name="own_functions:sequence_mean"),
    correction=CorrectionConfig(anchor="proximal_recomputed", weight=CustomWeightConfig(name="own_functions:importance")),
    minibatches=2,
)
LINEAR = CustomScheduleConfig(name="own_functions:linear")


def difference_of_rewards(returns: Returns) -> torch.Tensor:
    """The second named reward less the first."""
    assert returns.rewards is not None
    return returns.rewards[:, 1] - returns.rewards[:, 0]
