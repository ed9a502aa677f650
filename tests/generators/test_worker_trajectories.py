"""What a worker does with an episode of several trajectories: marks what is trained, counts it once, and refuses turn credit."""

import asyncio

import msgspec
import pytest
from scripted_environment import task
from test_worker import RECIPE, Shop

from asyncrl.core.episode import Episode
from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.recipe.algorithm import AlgorithmConfig, TurnCreditConfig
from asyncrl.core.recipe.decode import decode_recipe
from asyncrl.core.trajectory import StartReason
from asyncrl.generators import worker
from asyncrl.generators.worker_settings import WorkerSettings


@pytest.fixture
def two_streams(monkeypatch):
    """Every episode has a second trajectory, of a critic, that branched off the first after its prompt."""
    play = worker.run_episode

    async def played(*arguments: object) -> Episode:
        episode = await play(*arguments)
        (stream,) = episode.trajectories
        begun = {"part": 1, "role": "critic", "parent": 0, "shared": stream.prompt_length(), "why": StartReason.OTHER_ROLE}
        return msgspec.structs.replace(episode, trajectories=(stream, msgspec.structs.replace(stream, **begun)))

    monkeypatch.setattr(worker, "run_episode", played)


def training(*roles):
    environment = msgspec.structs.replace(RECIPE.environment, train=roles or "all")
    return msgspec.structs.replace(RECIPE, environment=environment)


@pytest.mark.parametrize(("roles", "trained"), [((), (True, True)), (("critic",), (False, True)), (("",), (True, False))])
async def test_only_the_roles_of_the_recipe_are_marked_to_be_trained(two_streams, roles, trained):
    shop = Shop([task("t")], recipe=training(*roles))
    async with shop.open():
        await shop.ticket_client.until(lambda: len(shop.ticket_client.finished(0)) == 4)
    for episode in shop.ticket_client.groups[0]:
        episode.check()
        assert tuple(each.trained for each in episode.trajectories) == trained
    statistics = shop.worker.statistics()
    assert statistics.finished_episodes == 4
    (counts,) = statistics.finished.sources.values()
    assert (counts.episodes, counts.turns) == (4, sum(len(list(each.turns())) for each in shop.ticket_client.groups[0]))
    assert counts.tokens == sum(map(len, shop.ticket_client.groups[0]))


async def test_turns_cannot_be_credited_and_the_run_ends_with_the_remedy(two_streams):
    shop = Shop([task("t")], recipe=msgspec.structs.replace(RECIPE, algorithm=AlgorithmConfig(credit=TurnCreditConfig())))
    async with asyncio.timeout(60):
        with pytest.raises(ComponentFailed, match=r"2 trajectories.*set algorithm.credit.kind=episode"):
            await shop.worker.run(shop.stop)


def test_an_environment_without_roles_has_none_to_choose():
    settings = WorkerSettings.of(RECIPE)
    assert settings.trained_roles == {"": None}
    sections = {
        "name": "r",
        "steps": 1,
        "model": {"path": "m"},
        "environment": {"name": "calculator", "train": ["critic"]},
        "tasks": {"kind": "generated"},
    }
    with pytest.raises(RecipeError, match=r"environment\.train: it names roles"):
        decode_recipe(sections)
    sections["environment"] = {"kind": "agent", "function": "agent:solve", "train": ["critic"]}
    assert WorkerSettings.of(decode_recipe(sections)).trained_roles == {"": ("critic",)}
