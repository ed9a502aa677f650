"""Tries a loss of the user's own on made rows: values, gradient, and what it makes use of."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from asyncrl.core.plug_ins.plug_in_function import UserFunction
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.custom.calls import call_loss
from asyncrl.learners.custom.inputs import LossInputs
from asyncrl.learners.custom.made_rows import MadeRow, MadeTokens, made_rows, tokens_of
from asyncrl.learners.custom.purity import alike, pure, refuse_packing


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
