"""Tries the functions of the user's own that a recipe names on a small made batch, before anything starts.

What is found is refused with the key of the recipe, the function, its file and line, what is violated and a remedy. What
must hold for each kind of function: docs/how-to/own-algorithms.md.
"""

from collections.abc import Iterator, Sequence

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
from asyncrl.learners.custom.calls import call_advantage, call_aggregation, call_loss, call_schedule, call_weight, loaded
from asyncrl.learners.custom.inputs import AggregationInputs, LossInputs, ScheduleInputs
from asyncrl.learners.custom.made_rows import (
    MadeRow,
    MadeTokens,
    made_aggregation,
    made_returns,
    made_rows,
    returns_without_spread,
    tokens_of,
    weights_of,
)
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


def check_loss(function: UserFunction, recipe: Recipe, *, with_reference: bool) -> Iterator[str]:
    """Check a loss; yields remarks on what is probably not meant.

    Raises:
        FunctionBroken: it raised an error, or violates what must hold for a loss.
    """
    rows = made_rows()
    trial = _Trial(function, with_reference)
    tokens = tokens_of(rows, with_reference=with_reference)
    losses = pure(function, lambda function, inputs: call_loss(function, inputs).losses, tokens.inputs)
    trial.refuse_values(tokens, losses)
    trial.refuse_gradient(tokens, losses)
    refuse_packing(function, "loss", trial.losses, rows)
    refuse_packing(function, "gradient", trial.gradient, rows)
    trial.refuse_left_out(rows)
    yield from trial.remarks(rows, recipe)


class _Trial:
    def __init__(self, function: UserFunction, with_reference: bool) -> None:
        self._function, self._with_reference = function, with_reference

    def losses(self, rows: Sequence[MadeRow]) -> Tensor:
        """The loss of each token, 0 for those that are left out."""
        tokens = tokens_of(rows, with_reference=self._with_reference)
        return _used(tokens.inputs, call_loss(self._function, tokens.inputs).losses).detach()

    def gradient(self, rows: Sequence[MadeRow]) -> Tensor:
        """The gradient of the sum of the losses with respect to each token's log-probability."""
        tokens = tokens_of(rows, with_reference=self._with_reference)
        return _gradient(tokens, call_loss(self._function, tokens.inputs).losses)

    def refuse_values(self, tokens: MadeTokens, losses: Tensor) -> None:
        """Refuse a loss that is not finite."""
        bad = tokens.inputs.mask & ~losses.isfinite()
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            raise self._function.broken(
                f"returned loss {losses[at].item():g} for a token with {_told(tokens.inputs, at)}",
                "keep it finite there; log-ratios reach from -20 to 20, and a log-probability may be 0",
            )

    def refuse_gradient(self, tokens: MadeTokens, losses: Tensor) -> None:
        """Refuse a gradient that is not there, not finite, or reaches something other than log-probabilities."""
        if not losses.requires_grad:
            problem = "returned a loss without gradient"
            raise self._function.broken(problem, "compute it from tokens.logp or tokens.log_ratio without .detach() or .item()")
        for leaf in _leaves(losses):
            if leaf is not tokens.leaf:
                problem = f"has a gradient with respect to a tensor of shape {tuple(leaf.shape)} of its own"
                raise self._function.broken(problem, "the gradient is to reach log-probabilities only: use .detach() on all else")
        gradient = _gradient(tokens, losses)
        bad = ~gradient.isfinite()
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            problem = f"has gradient {gradient[at].item():g} for a token with {_told(tokens.inputs, at)}"
            remedy = "keep it finite there: torch.where passes gradients of the branch that is not taken, so clamp before it"
            raise self._function.broken(problem, remedy)
        if not bool(gradient.any()):
            raise self._function.broken("has gradient 0 for every token", "compute it from tokens.logp or tokens.log_ratio")

    def refuse_left_out(self, rows: Sequence[MadeRow]) -> None:
        """Refuse a loss in which tokens that are left out have a part."""
        changed = [row._replace(logp=torch.where(row.kept, row.logp, row.logp - 1.0)) for row in rows]
        left_out = ~tokens_of(rows, with_reference=False).inputs.mask
        has_gradient = bool(self.gradient(rows)[left_out].any())
        if has_gradient or not alike(self.losses(changed), self.losses(rows)):
            problem = "lets tokens that are not in tokens.mask change the loss of other tokens"
            remedy = "give tokens.mask to every sum or mean, e.g. tokens.rows.means(values, tokens.mask)"
            raise self._function.broken(problem, remedy)

    def remarks(self, rows: Sequence[MadeRow], recipe: Recipe) -> Iterator[str]:
        """Yield what is allowed and probably not meant."""
        name, correction = f"algorithm.loss {self._function.name}", recipe.algorithm.correction
        at_anchor = [row._replace(logp_behaviour=row.logp) for row in rows]
        advantages = torch.cat([row.advantages for row in rows])
        if float((self.gradient(at_anchor) * advantages).sum()) > 0:
            yield (
                f"{name} makes tokens of positive advantage less probable: what it returns is minimised, so its sign may be "
                "turned round; return the negative of what is to grow"
            )
        uses_ratio = not torch.equal(self.losses(at_anchor), self.losses(rows))
        if not uses_ratio and recipe.buffer.max_staleness > 0 and correction.weight == "none":
            yield (
                f"{name} does not depend on tokens.log_ratio, so nothing corrects for tokens that an older policy sampled; "
                "use it, or set algorithm.correction.anchor=proximal_recomputed algorithm.correction.weight=token"
            )


def _used(inputs: LossInputs, losses: Tensor) -> Tensor:
    return torch.where(inputs.mask, losses, 0.0)


def _gradient(tokens: MadeTokens, losses: Tensor) -> Tensor:
    """float32 [n], 0 where the losses do not depend on a log-probability."""
    if not losses.requires_grad:
        return torch.zeros_like(tokens.leaf)
    (gradient,) = torch.autograd.grad(_used(tokens.inputs, losses).sum(), tokens.leaf, allow_unused=True, retain_graph=True)
    return torch.zeros_like(tokens.leaf) if gradient is None else gradient


def _leaves(losses: Tensor) -> Iterator[Tensor]:
    """Yield every tensor that the gradient of ``losses`` ends in."""
    waiting, seen = [losses.grad_fn], set()
    if losses.grad_fn is None:
        yield losses
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            yield variable
        waiting += [following for following, _ in node.next_functions]


def _told(inputs: LossInputs, at: int) -> str:
    logp, log_ratio, advantage = (values[at].item() for values in (inputs.logp, inputs.log_ratio, inputs.advantages))
    return f"logp {logp:g}, log_ratio {log_ratio:g} and advantage {advantage:g}"
