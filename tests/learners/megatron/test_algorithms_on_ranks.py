"""However the batch is divided, every algorithm takes the same step; one that only works on one rank would not."""

import msgspec
import pytest
import rank_side
from learner_samples import batch_of, changed, edited, make_batch, make_model, make_recipe, untimed
from loss_samples import decoupled, decoupled_ppo
from own_functions import OWN
from ranks import run_ranks

from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.advantage import (
    GdpoAdvantageConfig,
    NoAdvantageConfig,
    PassAtKAdvantageConfig,
    ReinforcePlusPlusAdvantageConfig,
    RlooAdvantageConfig,
)
from asyncrl.core.recipe.algorithm import ConstantAggregationConfig, SequenceMeanTokenMeanConfig, TurnCreditConfig
from asyncrl.core.recipe.correction import (
    MaskBoundConfig,
    NormalizedBoundConfig,
    RejectDivergenceConfig,
    RejectOffPolicySequenceConfig,
    RejectSecondMomentConfig,
)
from asyncrl.core.recipe.loss import ClipCovLossConfig, GmpoLossConfig, GspoLossConfig, KlCovLossConfig
from asyncrl.core.recipe.teacher import TeacherConfig

# Behaviour log-probabilities of the sample rows are far from a random model's; loose enough that something is trained.
LOOSE = MaskBoundConfig(lower=0.05, upper=20.0)
ALGORITHMS = {
    "turns": decoupled_ppo(
        advantage=RlooAdvantageConfig(),
        credit=TurnCreditConfig(discount=0.9),
        loss=GspoLossConfig(),
        aggregation=SequenceMeanTokenMeanConfig(),
        correction=decoupled(weight="segment", bound=LOOSE),
        entropy_bonus=0.01,
    ),
    "several_rewards": decoupled_ppo(
        advantage=GdpoAdvantageConfig(rewards={"right": 1.0, "polite": -0.5}), correction=decoupled(bound=LOOSE)
    ),
    "clip_cov": decoupled_ppo(
        advantage=ReinforcePlusPlusAdvantageConfig(),
        loss=ClipCovLossConfig(share=0.2, low=0.0, high=9.0),
        aggregation=ConstantAggregationConfig(tokens=30),
        correction=decoupled(anchor="proximal_log_linear", trust_region_decay=0.9),
    ),
    "kl_cov": decoupled_ppo(
        loss=KlCovLossConfig(share=0.2, coefficient=0.1),
        correction=decoupled(anchor="behaviour", weight="none", reject=(RejectDivergenceConfig(level="token", upper=1.0),)),
    ),
    # Nobody succeeds: all advantages are 0, and so are all covariances.
    "kl_cov_of_ties": decoupled_ppo(
        advantage=PassAtKAdvantageConfig(k=2, success=9.0),
        loss=KlCovLossConfig(share=0.2, coefficient=0.1),
        correction=decoupled(anchor="behaviour", weight="none"),
    ),
    "second_moment": decoupled_ppo(
        loss=GspoLossConfig(),
        correction=decoupled(
            weight="sequence", bound=NormalizedBoundConfig(upper=20.0), reject=(RejectSecondMomentConfig(upper=1.0),)
        ),
    ),
    "normalized_weights": decoupled_ppo(
        correction=decoupled(bound=NormalizedBoundConfig(upper=20.0), reject=(RejectOffPolicySequenceConfig(upper=0.5),)),
        minibatches=2,
    ),
    "gmpo": decoupled_ppo(
        loss=GmpoLossConfig(),
        aggregation=SequenceMeanTokenMeanConfig(),
        correction=decoupled(bound=LOOSE, reject=(RejectDivergenceConfig(level="token", upper=2.0),)),
    ),
    "teacher": decoupled_ppo(teacher=TeacherConfig(path="teacher"), correction=decoupled(bound=LOOSE), minibatches=2),
    "teacher_alone_of_covariances": decoupled_ppo(
        advantage=NoAdvantageConfig(),
        teacher=TeacherConfig(path="teacher", coefficient=0.5),
        loss=KlCovLossConfig(share=0.2, coefficient=0.1),
        correction=decoupled(anchor="behaviour", weight="none"),
    ),
    "own_functions": OWN,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def step(folder, algorithm, data, micro_batch_tokens):
    batch, episodes = make_batch()
    batch, episodes = batch_of(map(with_turn_rewards, map(taught, episodes.values())))
    batch = changed(batch, lambda each: {"rewards": (0.3 * (each.sample_index % 3), each.reward)})
    recipe = make_recipe(folder, data=data, micro_batch_tokens=micro_batch_tokens)
    recipe = msgspec.structs.replace(recipe, algorithm=algorithm)
    results = run_ranks(rank_side.train, recipe, folder, batch, episodes, 1, None, data=data)
    return untimed(combine(reading for reports, _, _ in results for reading in reports[0].readings))


def taught(episode):
    (trajectory,) = episode.trajectories
    ids = trajectory.token_ids[trajectory.loss_mask]
    return edited(episode, teacher_logprobs=(-0.1 * (ids % 7)).astype("float32"))


def with_turn_rewards(episode):
    first, last = episode.trajectories[0].turns
    turns = (
        msgspec.structs.replace(first, reward=0.5 * (episode.sample_index % 3)),
        msgspec.structs.replace(last, reward=episode.reward),
    )
    return edited(episode, turns=turns)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_ranks_take_the_step_of_one(folder, name):
    alone = step(folder, ALGORITHMS[name], 1, 1000)
    divided = step(folder, ALGORITHMS[name], 2, 64)
    assert divided == pytest.approx(alone, rel=1e-5, abs=1e-6)
    assert alone["learner/grad_norm"] > 0
    assert alone["loss/policy"] != 0
