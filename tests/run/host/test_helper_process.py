"""Processes that help the driver load our modules, whatever lies in the folder that the user launches from."""

from pathlib import Path

import pytest

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.generators.episode import EpisodeLimits
from asyncrl.run.host.helper_process import _OWN_ERROR, run_helper
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


async def test_what_the_disk_refuses_is_told_with_its_file_and_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"no folder")
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    player = Player(ClassEnvironmentConfig(name="calculator"), EpisodeLimits.of(compose("quickstart")))
    request = Request({"": player}, ModelConfig(path="tiny", tool_parser="hermes"), 0)
    with pytest.raises(ComponentFailed, match=f"^making failed: {tmp_path}/cache/tiny: Not a directory; see"):
        await run_helper("asyncrl.run.tiny.warm_up", request, print, task="making", seconds=300)


@pytest.mark.parametrize("before", ["", "[rank0]: "])
def test_the_class_of_an_error_of_ours_is_left_out(before: str) -> None:
    assert _OWN_ERROR.sub("", f"{before}asyncrl.core.errors.ComponentFailed: /a: full") == "/a: full"
    assert _OWN_ERROR.sub("", f"{before}OSError: full") == f"{before}OSError: full"
