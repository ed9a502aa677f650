"""Calls the functions of the user's own, and refuses results that the learner cannot use.

What always holds: a result that is returned from here has the documented shape and type. What takes longer to find out,
for example whether a loss depends on how rows are packed, is checked once, at launch: :mod:`asyncrl.learners.custom.check`.
"""

import math
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asyncrl.core.plug_ins.plug_in_function import UserFunction, load_function
from asyncrl.core.recipe.custom import CustomConfig
from asyncrl.learners.algorithm.advantages import Returns
from asyncrl.learners.custom.inputs import AggregationInputs, LossInputs, ScheduleInputs, WeightInputs

_PAIR = 2


class TokenLosses(NamedTuple):
    """The loss of each token, float32 [n], and whether the loss cut its gradient, bool [n]."""

    losses: Tensor
    clipped: Tensor


class RowShares(NamedTuple):
    """The factor of each row's loss terms, float64 [rows], and what divides their sum."""

    shares: Tensor
    denominator: float


def loaded(config: CustomConfig) -> UserFunction:
    """Load the function that a section of the recipe names.

    Raises:
        RecipeError: it cannot be loaded.
    """
    return load_function(config.name, config.options, config.place)


def call_advantage(function: UserFunction, returns: Returns) -> Tensor:
    """Have the advantages of all episodes, or turns, of the batch computed: float32 [u].

    Raises:
        FunctionBroken: the function raised an error, or its result has another shape or type or is not finite.
    """
    result = _tensor(function, function(returns), len(returns.values), "the advantage of each entry of returns.values")
    finite = result.isfinite()
    if not bool(finite.all()):
        place = int((~finite).nonzero()[0])
        group = returns.group == returns.group[place]
        values = ", ".join(f"{value:g}" for value in returns.values[group].tolist())
        problem = f"returned advantage {result[place].item():g} in a group of returns {values}"
        raise function.broken(problem, "give groups of equal returns, or of one, an advantage of 0")
    return result.detach().float()


def call_loss(function: UserFunction, tokens: LossInputs) -> TokenLosses:
    """Have the loss of each token computed.

    Raises:
        FunctionBroken: the function raised an error, or its result has another shape or type.
    """
    result: Any = function(tokens)
    count, what = len(tokens.logp), "the loss of each token"
    if not isinstance(result, tuple):
        return TokenLosses(_tensor(function, result, count, what).float(), torch.zeros_like(tokens.mask))
    if len(result) != _PAIR:
        raise function.broken(f"returned {len(result)} values", "return the losses, or a pair of losses and clipped tokens")
    losses, clipped = _tensor(function, result[0], count, what), result[1]
    if not isinstance(clipped, Tensor) or clipped.dtype != torch.bool or clipped.shape != tokens.mask.shape:
        problem = f"returned {_seen(clipped)} for the tokens whose gradient it cut"
        raise function.broken(problem, f"return a bool tensor of shape ({count},), one entry for each token")
    return TokenLosses(losses.float(), clipped)


def call_weight(function: UserFunction, tokens: WeightInputs) -> Tensor:
    """Have the importance weight of each token computed: float32 [n], without gradient.

    Raises:
        FunctionBroken: the function raised an error, or its result has another shape or type.
    """
    return _tensor(function, function(tokens), len(tokens.log_ratio), "the weight of each token").detach().float()


def call_aggregation(function: UserFunction, rows: AggregationInputs) -> RowShares:
    """Have the rows' shares and the denominator computed.

    Raises:
        FunctionBroken: the function raised an error, or its result has another shape or type or is out of range.
    """
    result: Any = function(rows)
    if not isinstance(result, tuple) or len(result) != _PAIR:
        raise function.broken(f"returned {_seen(result)}", "return a pair: the share of each row, and the denominator")
    shares = _tensor(function, result[0], len(rows.loss_tokens), "the share of each row").detach().double()
    if not bool((shares.isfinite() & (shares >= 0)).all()):
        raise function.broken(f"returned shares {_listed(shares)}", "return finite shares of at least 0; clamp(min=1) divisors")
    denominator = result[1]
    if isinstance(denominator, Tensor) and denominator.numel() == 1:
        denominator = denominator.item()
    if not isinstance(denominator, Real) or not math.isfinite(denominator) or denominator <= 0:
        tokens = _listed(rows.loss_tokens)
        problem = f"returned denominator {_seen(denominator)} for rows of {tokens} tokens"
        raise function.broken(problem, "return a finite number above 0 wherever a row has tokens")
    return RowShares(shares, float(denominator))


def call_schedule(function: UserFunction, at: ScheduleInputs) -> float:
    """Have the learning rate of a training step computed.

    Raises:
        FunctionBroken: the function raised an error, or its result is not a finite number of at least 0.
    """
    rate: Any = function(at)
    if isinstance(rate, bool) or not isinstance(rate, Real) or not math.isfinite(rate) or rate < 0:
        problem = f"returned {_seen(rate)} for training step {at.step} of {at.steps}"
        raise function.broken(problem, "return a finite number of at least 0")
    return float(rate)


def _tensor(function: UserFunction, result: object, count: int, what: str) -> Tensor:
    """Return the result if it is a tensor of ``count`` floating-point numbers."""
    if not isinstance(result, Tensor):
        raise function.broken(f"returned {_seen(result)}", f"return a tensor of shape ({count},): {what}")
    if result.shape != (count,):
        problem = f"returned a tensor of shape {tuple(result.shape)}"
        raise function.broken(problem, f"return one of shape ({count},), {what}; neither sum nor average it")
    if not result.is_floating_point():
        raise function.broken(f"returned a tensor of {result.dtype}", "return floating-point numbers, e.g. with .float()")
    return result


def _seen(result: object) -> str:
    if isinstance(result, Tensor):
        return f"a tensor of shape {tuple(result.shape)} and {result.dtype}"
    return f"{result:g}" if isinstance(result, int | float) else f"an object of type {type(result).__name__}"


def _listed(values: Tensor) -> str:
    return ", ".join(f"{value:g}" for value in values[:8].tolist()) + (" ..." if len(values) > 8 else "")
