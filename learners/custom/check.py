"""Tries the functions of the user's own that a recipe names on a small made batch, before anything starts.

What is found is refused with the key of the recipe, the function, its file and line, what is violated and a remedy. What
must hold for each kind of function: docs/how-to/own-algorithms.md.
"""

from collections.abc import Iterator

import msgspec
import torch
from torch import Tensor

from asyncrl.core.errors import RecipeError
from asyncrl.core.plug_ins.plug_in_function import FunctionBroken, UserFunction
from asyncrl.core.recipe.algorithm import NoKlConfig
from asyncrl.core.recipe.custom import (
    CustomAdvantageConfig,
    CustomAggregationConfig,
    CustomConfig,
    CustomLossConfig,
    CustomScheduleConfig,
    CustomWeightConfig,
)
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.algorithm.advantages import Returns
from asyncrl.learners.custom.calls import call_advantage, call_aggregation, call_schedule, call_weight, loaded
from asyncrl.learners.custom.check_loss import check_loss
from asyncrl.learners.custom.inputs import AggregationInputs, ScheduleInputs
from asyncrl.learners.custom.made_rows import made_aggregation, made_returns, made_rows, returns_without_spread, weights_of
from asyncrl.learners.custom.purity import STATE, alike, called_with_seed, pure, refuse_packing

_SCHEDULE_STEPS = 2_000
"""The most training steps for which a schedule is tried, evenly spread over the run."""


def check_customs(recipe: Recipe) -> list[str]:
    """Try every function of the user's own that the recipe names; returns remarks on what is probably not meant.

    Raises:
        RecipeError: a function cannot be loaded, raises an error, or violates what must hold for it.
    """
    remarks: list[str] = []
    for section in recipe.customs:
        function = loaded(section)
        try:
            remarks += _checked(section, function, recipe)
        except FunctionBroken as error:
            raise RecipeError(error.place, f"{error.what} {error.problem}", error.remedy) from error
    return remarks


def _checked(section: CustomConfig, function: UserFunction, recipe: Recipe) -> Iterator[str]:
    match section:
        case CustomAdvantageConfig():
            yield from _check_advantage(function, len(section.rewards))
        case CustomLossConfig():
            yield from check_loss(function, recipe, with_reference=not isinstance(recipe.algorithm.kl, NoKlConfig))
        case CustomAggregationConfig():
            _check_aggregation(function)
        case CustomWeightConfig():
            _check_weight(function, is_anchored=recipe.algorithm.correction.anchor != "behaviour")
        case CustomScheduleConfig():
            _check_schedule(function, recipe)


def _check_advantage(function: UserFunction, named: int) -> Iterator[str]:
    returns = made_returns(named)
    found = pure(function, call_advantage, returns)
    call_advantage(function, returns_without_spread(named))
    _refuse_order(function, found, returns)
    renumbered = msgspec.structs.replace(returns, group=returns.group.max() - returns.group)
    if not alike(call_advantage(function, renumbered), found):
        problem = "gives other advantages when the groups are numbered otherwise"
        raise function.broken(problem, "use returns.group only to find out which entries belong together")
    first = returns.group == 0
    centred = returns.values[first] - returns.values[first].mean()
    if not named and float((found[first].double() * centred).sum()) < 0:
        yield f"algorithm.advantage {function.name} gives higher returns lower advantages: is its sign turned round?"


def _refuse_order(function: UserFunction, found: Tensor, returns: Returns) -> None:
    order = torch.randperm(len(returns.values), generator=torch.Generator().manual_seed(0))
    rewards = None if returns.rewards is None else returns.rewards[order]
    permuted = Returns(returns.values[order], returns.group[order], returns.tokens[order], rewards)
    if not alike(call_advantage(function, permuted), found[order]):
        problem = "gives other advantages when the same episodes come in another order"
        raise function.broken(problem, "compare the entries of a group wherever they stand")


def _check_aggregation(function: UserFunction) -> None:
    rows = made_aggregation()

    def both(function: UserFunction, rows: AggregationInputs) -> Tensor:
        found = call_aggregation(function, rows)
        return torch.cat([found.shares, torch.tensor([found.denominator], dtype=torch.float64)])

    found = pure(function, both, rows)
    order = torch.tensor([3, 0, 4, 2, 1])
    permuted = both(function, AggregationInputs(loss_tokens=rows.loss_tokens[order], weights=rows.weights[order]))
    if not alike(permuted, torch.cat([found[:-1][order], found[-1:]])):
        problem = "gives other shares or another denominator when the same rows come in another order"
        raise function.broken(problem, "let a row's share depend on its own tokens, and the denominator on sums over rows")


def _check_weight(function: UserFunction, *, is_anchored: bool) -> None:
    inputs = weights_of(made_rows(), is_anchored=is_anchored)
    found = pure(function, call_weight, inputs)
    bad = ~(found.isfinite() & (found >= 0))
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        problem = f"returned weight {found[at].item():g} for log_ratio {inputs.log_ratio[at].item():g}"
        raise function.broken(problem, "return finite weights of at least 0; tokens.log_ratio.exp() is never negative")
    refuse_packing(
        function, "weight", lambda chosen: call_weight(function, weights_of(chosen, is_anchored=is_anchored)), made_rows()
    )


def _check_schedule(function: UserFunction, recipe: Recipe) -> None:
    steps, learner = recipe.steps, recipe.learner
    tried = sorted({round(place * (steps - 1) / _SCHEDULE_STEPS) for place in range(_SCHEDULE_STEPS + 1)})

    def rates(order: list[int]) -> dict[int, float]:
        return {
            step: call_schedule(
                function,
                ScheduleInputs(
                    step=step,
                    steps=steps,
                    lr=learner.lr,
                    warmup_steps=learner.warmup_steps,
                    min_lr_ratio=learner.min_lr_ratio,
                ),
            )
            for step in order
        }

    found = called_with_seed(lambda: rates(tried), 0)
    again = called_with_seed(lambda: rates(tried[::-1]), 1)
    differing = [step for step in tried if again[step] != found[step]]
    if differing:
        problem = f"returned two learning rates for training step {differing[0]}, when it was asked again"
        raise function.broken(problem, f"compute it from the argument alone: {STATE}; a resumed run asks from any step on")
    if not any(found.values()):
        raise function.broken(f"returned 0 for all {steps} training steps", "return a rate above 0 for some of them")
