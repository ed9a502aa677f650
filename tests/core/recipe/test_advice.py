"""Values that work against each other are named with a remedy; the remedy mends it, and the defaults need none."""

from pathlib import Path
from typing import Any

import pytest

from asyncrl.core.recipe.decode import decode_recipe
from asyncrl.core.recipe.rules.advice import conflicts
from asyncrl.run.recipe.compose import compose, shipped_recipes

PLAIN = {"name": "x", "steps": 3, "model": {"path": "tiny"}, "environment": {"name": "calculator"}}
RECOMPUTED = {"anchor": "proximal_recomputed", "weight": "token"}
BY_ROW = {"kind": "sequence_mean_token_mean"}
WIDE = {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.1}


def said(**sections: Any) -> list[str]:
    return list(conflicts(decode_recipe(PLAIN | sections)))


def gspo(**algorithm: Any) -> dict[str, Any]:
    return {"loss": {"kind": "gspo"}, "aggregation": BY_ROW, "correction": RECOMPUTED, **algorithm}


REINFORCE = {"loss": {"kind": "reinforce"}, "correction": RECOMPUTED}
ZERO_VARIANCE = {"filters": [{"kind": "zero_variance"}]}


@pytest.mark.parametrize(
    ("sections", "told", "mended"),
    [
        (
            {"algorithm": {"advantage": {"kind": "gae"}}, "learner": {"lr": 2e-4}},
            "critic_lr 1e-05 is below learner.lr 0.0002",
            {"algorithm": {"advantage": {"kind": "gae", "critic_lr": 2e-4}}, "learner": {"lr": 2e-4}},
        ),
        (
            {"algorithm": gspo(correction={})},
            "with algorithm.correction.anchor behaviour the staleness",
            {"algorithm": gspo()},
        ),
        (
            {"algorithm": gspo(minibatches=4), "learner": {"lr": 2e-4}},
            "with learner.lr 0.0002 the first of the 4 optimizer steps",
            {"algorithm": gspo(minibatches=4, loss=WIDE), "learner": {"lr": 2e-4}},
        ),
        (
            {"algorithm": gspo(aggregation={"kind": "token_mean"})},
            "weighs long rows more",
            {"algorithm": gspo()},
        ),
        (
            {"algorithm": {**REINFORCE, "epochs": 2}},
            "of the 2 optimizer steps on a batch only the first is corrected",
            {"algorithm": REINFORCE},
        ),
        ({"buffer": {"max_staleness": 5}}, "launch with +correction=far", {"buffer": {"max_staleness": 4}}),
        (
            {"algorithm": {"advantage": {"kind": "reinforce_plus_plus"}}, "buffer": ZERO_VARIANCE},
            "would train; take the filter out",
            {"algorithm": {"advantage": {"kind": "grpo"}}, "buffer": ZERO_VARIANCE},
        ),
        ({"learner": {"lora": {}}}, "set learner.lr=1e-05", {"learner": {"lora": {}, "lr": 1e-5}}),
    ],
)
def test_a_conflict_is_named_and_its_remedy_mends_it(sections: dict[str, Any], told: str, mended: dict[str, Any]):
    (one,) = said(**sections)
    assert told in one
    assert "\n" not in one
    assert said(**mended) == []


def test_published_settings_and_shipped_recipes_are_in_peace():
    assert said() == []
    assert said(algorithm=gspo(minibatches=4)) == []
    for recipe in shipped_recipes():
        assert list(conflicts(compose(recipe))) == []


def test_the_correction_for_far_tokens_is_the_remedy_it_is_said_to_be(tmp_path: Path):
    assert list(conflicts(compose("quickstart", ["buffer.max_staleness=8"])))
    assert list(conflicts(compose("quickstart", ["buffer.max_staleness=8", "+correction=far"]))) == []
