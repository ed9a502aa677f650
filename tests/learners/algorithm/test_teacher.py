"""The advantage that a teacher gives, against the divergence itself in float64."""

import msgspec
import pytest
import torch
from learner_samples import packed_batch
from loss_samples import decoupled, decoupled_ppo

from asyncrl.core.recipe.advantage import NoAdvantageConfig
from asyncrl.core.recipe.loss import ReinforceLossConfig
from asyncrl.core.recipe.teacher import TeacherConfig
from asyncrl.learners.algorithm.advantages import Returns, advantages
from asyncrl.learners.algorithm.losses import policy_loss
from asyncrl.learners.algorithm.teacher import with_teacher

TOKENS = 7
TEACHER = TeacherConfig(path="teacher", coefficient=0.5)


def tokens(advantage: float = 0.0):
    """One token of each kind there is, each once, as if a batch had sampled them all."""
    batch = packed_batch(slice(0, 1))
    count = len(batch.targets)
    assert count >= TOKENS
    fresh = {"mask": torch.ones(count, dtype=torch.bool), "share": torch.ones(count), "staleness": torch.zeros(count)}
    return msgspec.structs.replace(batch, advantages=torch.full((count,), advantage), **fresh)


def test_the_gradient_is_that_of_the_reverse_divergence():
    batch = tokens()
    count = len(batch.targets)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, dtype=torch.float64, generator=generator).requires_grad_()
    teacher = torch.randn(count, dtype=torch.float64, generator=generator).log_softmax(0)
    logp = logits.log_softmax(0)
    divergence = TEACHER.coefficient * (logp.exp() * (logp - teacher)).sum()
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    # An expectation over what the policy samples: each token as often as it does.
    batch = msgspec.structs.replace(batch, logp_teacher=teacher.float(), logp_behaviour=logp.detach().float())
    batch = msgspec.structs.replace(with_teacher(batch, logp, TEACHER), share=logp.detach().exp())
    config = decoupled_ppo(loss=ReinforceLossConfig(), correction=decoupled(weight="none"))
    loss = policy_loss(logp, logp.detach(), torch.zeros(count), batch, config, 1.0).loss
    (found,) = torch.autograd.grad(loss, logits)
    assert found.double().numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    assert expected.abs().max() > 0.01


def test_it_is_added_to_the_advantage_of_rewards():
    batch = tokens(advantage=2.0)
    count = len(batch.targets)
    taught = with_teacher(
        msgspec.structs.replace(batch, logp_teacher=torch.full((count,), -1.0)), torch.full((count,), -3.0), TEACHER
    )
    assert taught.advantages.tolist() == [3.0] * count
    assert with_teacher(batch, torch.zeros(count), None) is batch


def test_tokens_that_no_teacher_saw_are_an_error():
    with pytest.raises(ValueError, match="under the teacher that algorithm"):
        with_teacher(tokens(), torch.zeros(1), TEACHER)


def test_without_rewards_every_advantage_is_0():
    returns = Returns(torch.tensor([0.0, 1.0]), torch.tensor([0, 0]), torch.tensor([3, 4]))
    assert advantages(returns, NoAdvantageConfig()).tolist() == [0.0, 0.0]
