"""Processes that help the driver load our modules, whatever lies in the folder that the user launches from."""

from pathlib import Path

import pytest

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.generators.episode import EpisodeLimits
from asyncrl.run.host.helper_process import run_helper
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tiny.player import Player
from asyncrl.run.tiny.warm_up import Request


async def test_modules_of_the_user_hide_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("buffers", "generators", "learners", "msgspec", "asyncrl"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('hidden')\n")
    monkeypatch.chdir(tmp_path)
    player = Player(ClassEnvironmentConfig(name="calculater"), EpisodeLimits.of(compose("quickstart")))
    with pytest.raises(ComponentFailed, match="there is no environment 'calculater'"):
        await run_helper(
            "asyncrl.run.tiny.warm_up",
            Request({"": player}, ModelConfig(path="tiny", tool_parser="hermes"), 0),
            print,
            task="making",
            seconds=300,
        )
