"""On-policy distillation: the advantage that a teacher gives each sampled token. A pure function of tensors."""

from typing import TypeVar

import msgspec
from torch import Tensor

from asyncrl.core.recipe.teacher import TeacherConfig
from asyncrl.learners.algorithm.loss_tokens import LossTokens

Tokens = TypeVar("Tokens", bound=LossTokens)


def with_teacher(tokens: Tokens, logp: Tensor, teacher: TeacherConfig | None) -> Tokens:
    """Return the tokens with ``coefficient * (log q - log p)`` added to the advantage of each: ``q`` is the teacher's probability
    of the token, and ``p`` that of the policy, without gradient. Unchanged without a teacher.

    Where ``p`` is the policy that is being optimised, an advantage of this kind makes the gradient of the policy loss that of
    ``coefficient`` times the reverse divergence ``KL(p || q)``, estimated from the sampled tokens, on states that the policy
    reached itself (Agarwal et al. 2023, arXiv:2306.13649; Gu et al. 2023, arXiv:2306.08543; Lu 2025, "On-Policy Distillation").

    Args:
        tokens: with the teacher's log-probabilities, if there is a teacher.
        logp: [n], log-probabilities (nats) under the policy.

    Raises:
        ValueError: there is a teacher, and the tokens lack its log-probabilities.
    """
    if teacher is None or not len(tokens.advantages):
        return tokens
    if tokens.logp_teacher is None:
        raise ValueError("the tokens have no log-probabilities under the teacher that algorithm.teacher names")
    lead = tokens.logp_teacher - logp.detach().float()
    return msgspec.structs.replace(tokens, advantages=tokens.advantages + teacher.coefficient * lead)
