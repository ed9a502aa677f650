"""Episodes are cut to what a recipe allows, and only where it allows less than the run that played them."""

from pathlib import Path

import msgspec
import pytest
from test_fit_run import made_run

from asyncrl.planning.episode_limits import Limits, cut, limited, limits_of
from asyncrl.planning.prediction import predict
from asyncrl.planning.rate_fit import fit_run
from asyncrl.planning.rate_sources import basis_of_file, machine_of
from asyncrl.planning.rates_file import read_rates
from asyncrl.run.recipe.compose import compose, compose_for
from asyncrl.simulation.episodes import ModelEpisode, ModelTurn

NONE = Limits(context=None, turn=None, turns=None, sampled=None)
EPISODE = ModelEpisode((ModelTurn(40, 100, 0.5), ModelTurn(10, 50, 0.5), ModelTurn(10, 50)), 0.1, 0.2, 7)


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        ({"turn": 60}, [(40, 60)]),
        ({"turn": 100, "context": 170}, [(40, 100), (10, 20)]),
        ({"context": 150}, [(40, 100)]),
        ({"context": 30}, [(15, 15)]),
        ({"context": 40, "turn": 15}, [(25, 15)]),
        ({"context": 50, "turn": 20}, [(40, 10)]),
        ({"context": 41}, [(40, 1)]),
        ({"turns": 2}, [(40, 100), (10, 50)]),
        ({"sampled": 120}, [(40, 100), (10, 20)]),
        ({"sampled": 100}, [(40, 100)]),
        ({"context": 266}, [(40, 100), (10, 50), (10, 50)]),
    ],
)
def test_an_episode_ends_where_a_limit_is_reached(limits: dict[str, int], turns: list[tuple[int, int]]):
    found = cut(EPISODE, msgspec.structs.replace(NONE, **limits))
    assert [(turn.given, turn.sampled) for turn in found.turns] == turns
    assert (found.reset_s, found.score_s, found.given_last) == (0.1, 0.2, 0)
    assert found.length <= limits.get("context", 1000)


LONG_PROMPT = ModelEpisode((ModelTurn(5000, 200),))


@pytest.mark.parametrize(
    ("episode", "limits"),
    [
        (EPISODE, {}),
        (EPISODE, {"turn": 100, "turns": 3, "sampled": 200, "context": 267}),
        (LONG_PROMPT, {"context": 8192}),
        (LONG_PROMPT, {"context": 8192, "turn": 4096}),
        (LONG_PROMPT, {"context": 5200, "turn": 200}),
    ],
)
def test_an_episode_within_the_limits_stays_as_it_is(episode: ModelEpisode, limits: dict[str, int]):
    assert cut(episode, msgspec.structs.replace(NONE, **limits)) is episode


def test_episodes_of_a_file_keep_to_the_recipe():
    file = read_rates("h100")
    basis = basis_of_file(file, "h100", None)
    recipe = compose_for(machine_of(file, 2), "quickstart", [])[0]
    found = limited(basis, recipe)
    assert max(episode.length for episode in found.training.episodes.all) == 256
    assert found.training.episodes.correlated
    notes = predict(recipe, basis, seeds=1, steps=4).notes
    (note,) = [note for note in notes if "longer than the recipe allows" in note]
    assert note.startswith("100 % of the episodes of rates of h100")
    assert note.endswith("model.max_context 256, sampling.max_turn_tokens 48, max_turns 6")
    assert any("evaluations take no time" in note for note in notes)
    wide = compose_for(machine_of(file, 2), "quickstart", ["model.max_context=20000", "sampling.max_turn_tokens=16000"])[0]
    assert limited(basis, wide).training is basis.training


def test_episodes_of_a_run_are_cut_by_what_is_narrower_than_there(tmp_path: Path):
    basis = fit_run(made_run(tmp_path).path)
    assert basis.recipe is not None
    assert limited(basis, basis.recipe) == basis, "several trajectories of an episode may together be longer than one may be"
    narrow = compose("quickstart", ["environment.max_turns=2"])
    found = limited(basis, narrow)
    assert {len(episode.turns) for episode in found.training.episodes.all} == {1, 2}
    assert found.notes[-1].startswith("3")  # a third of them has three turns
    assert found.notes[-1].endswith("cut off: max_turns 2")
    played = basis_of_file(read_rates("h100"), "h100", basis)
    assert limited(played, basis.recipe).training is played.training


def test_the_widest_limits_of_a_mixture_count():
    members = {"a": {"name": "calculator", "max_turns": 3, "max_sampled_tokens": 50}, "b": {"name": "calculator", "max_turns": 5}}
    wide = compose("quickstart")
    mixed = {"kind": "mixed", "members": {name: {"kind": "class", **own} for name, own in members.items()}}
    environment = msgspec.convert(mixed, type(wide).__annotations__["environment"])
    found = limits_of(msgspec.structs.replace(wide, environment=environment))
    assert (found.turns, found.sampled) == (5, None)
