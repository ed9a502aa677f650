"""With one trajectory an episode, batches are prepared and trained as when an episode was one trajectory: to the bit."""

from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import rank_side
from learner_samples import make_batch, make_model, make_recipe, trajectories_changed
from loss_samples import decoupled, decoupled_ppo
from ranks import run_ranks

from asyncrl.core.recipe.advantage import (
    GaeAdvantageConfig,
    GdpoAdvantageConfig,
    OpoAdvantageConfig,
    ReinforcePlusPlusAdvantageConfig,
    RemaxAdvantageConfig,
    RlooAdvantageConfig,
)
from asyncrl.core.recipe.algorithm import (
    ConstantAggregationConfig,
    KlInRewardConfig,
    OverlongPenaltyConfig,
    SequenceMeanTokenMeanConfig,
    SequenceMeanTokenSumConfig,
    TurnCreditConfig,
)
from asyncrl.core.recipe.correction import MaskBoundConfig
from asyncrl.core.recipe.loss import ClipCovLossConfig, GspoLossConfig

LOOSE = decoupled(bound=MaskBoundConfig(lower=0.05, upper=20.0))
ALGORITHMS = {
    "usual": decoupled_ppo(correction=LOOSE),
    "sequences": decoupled_ppo(
        correction=LOOSE, aggregation=SequenceMeanTokenMeanConfig(), loss=GspoLossConfig(), minibatches=2, epochs=2
    ),
    "whitened": decoupled_ppo(
        correction=LOOSE,
        advantage=ReinforcePlusPlusAdvantageConfig(),
        loss=ClipCovLossConfig(share=0.2, low=0.0, high=9.0),
        aggregation=ConstantAggregationConfig(tokens=30),
        overlong=OverlongPenaltyConfig(limit=30, ramp=20),
    ),
    "by_length": decoupled_ppo(
        correction=LOOSE,
        advantage=OpoAdvantageConfig(),
        aggregation=SequenceMeanTokenSumConfig(),
        kl=KlInRewardConfig(coefficient=0.1),
    ),
    "turns": decoupled_ppo(
        correction=LOOSE,
        advantage=RlooAdvantageConfig(),
        credit=TurnCreditConfig(discount=0.9),
        overlong=OverlongPenaltyConfig(limit=30, ramp=20),
        kl=KlInRewardConfig(coefficient=0.1),
    ),
    "several_rewards": decoupled_ppo(correction=LOOSE, advantage=GdpoAdvantageConfig(rewards={"right": 1.0, "polite": -0.5})),
    "greedy": decoupled_ppo(correction=LOOSE, advantage=RemaxAdvantageConfig()),
    "critic": decoupled_ppo(correction=LOOSE, advantage=GaeAdvantageConfig(critic_lr=1e-2), kl=KlInRewardConfig(coefficient=0.1)),
}


class Before(NamedTuple):
    """What was made of the sample batch before: a digest of what was prepared, and the losses and gradient norms of two steps."""

    prepared: str
    losses: tuple[float, float]
    norms: tuple[float, float]


BEFORE = {
    "usual": Before("0931feb647fb37c7", losses=(-0.1843673652, -0.5564283226), norms=(3.638126416, 3.637119554)),
    "sequences": Before("c32166f222bafb70", losses=(-0.02546802536, -0.4829400042), norms=(3.432357414, 2.738662856)),
    "whitened": Before("a209848c14f18a9a", losses=(0.004346620291, -0.1200502021), norms=(1.450953923, 1.461672267)),
    "by_length": Before("4d9c938a9ca936a2", losses=(-0.6295709498, -1.460717708), norms=(22.56152883, 11.20886135)),
    "turns": Before("1e29c74fa18f5b9e", losses=(0.07093530521, -0.08185918815), norms=(2.121827619, 1.841787943)),
    "several_rewards": Before("2d080b2bd21b6c12", losses=(-0.04457683116, -0.3403140195), norms=(3.017592663, 2.912135901)),
    "critic": Before("1e29c74fa18f5b9e", losses=(-0.05729272217, -0.3429894), norms=(3.554754705, 2.876027297)),
    "greedy": Before("563c9561469ea09f", losses=(0.611576505, 0.4101418853), norms=(2.485167275, 1.365261793)),
}


def graded(greedy):
    """The sample batch with rewards of turns and rewards that have names; with ``greedy``, the first episodes are greedy."""
    batch, episodes = make_batch()
    random = np.random.default_rng(3)
    records = []
    for record in batch.episodes:
        rewards = tuple(random.uniform(-1, 1, 2).round(2).tolist())
        (played,) = episodes[record.name].trajectories
        turns = tuple(msgspec.structs.replace(turn, reward=reward) for turn, reward in zip(played.turns, rewards, strict=True))
        trajectories = (msgspec.structs.replace(played, turns=turns),)
        episodes[record.name] = msgspec.structs.replace(episodes[record.name], trajectories=trajectories)
        named = (record.reward, float(random.integers(0, 3)))
        fields = trajectories_changed(record, turn_rewards=rewards) | {"rewards": named}
        records.append(msgspec.structs.replace(record, **fields, greedy=greedy and record.sample_index == 0))
    return msgspec.structs.replace(batch, episodes=tuple(records)), episodes


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = make_model(tmp_path_factory.mktemp("model"))
    recipes = {
        name: msgspec.structs.replace(make_recipe(folder, lr=1e-3, micro_batch_tokens=64), algorithm=algorithm)
        for name, algorithm in ALGORITHMS.items()
    }
    plain, greedy = {name: each for name, each in recipes.items() if name != "greedy"}, {"greedy": recipes["greedy"]}
    found = {}
    for some, batch in (plain, graded(False)), (greedy, graded(True)):
        found |= run_ranks(rank_side.prepare_and_train, some, folder, *batch)[0]
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_batches_are_prepared_to_the_bit_as_before(trained, name):
    assert trained[name][0] == BEFORE[name].prepared


@pytest.mark.parametrize("name", ALGORITHMS)
def test_steps_are_those_of_before(trained, name):
    """Processors differ in the last bits of the model's products; on the one where this was recorded, all bits are equal."""
    for reading, before in ("loss/policy", BEFORE[name].losses), ("learner/grad_norm", BEFORE[name].norms):
        assert [of_step[reading] for of_step in trained[name][1]] == pytest.approx(before, rel=1e-4, abs=1e-6)
