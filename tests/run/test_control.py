"""Who asks a run that goes on, and what the answers are."""

import asyncio
import os
import stat
from pathlib import Path

import msgspec
import pytest

from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.control import RunControl, controlled, finish, log, scale
from asyncrl.run.early_end import EarlyEnd
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.metric_names import metric_name
from asyncrl.run.recipe.compose import compose


class Pool:
    async def scale(self, pool: str, size: int) -> str:
        if pool != "generators":
            raise RecipeError(pool, "the run has no pool of that name", "name one of generators, such as generators=2")
        return f"{size} now"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "recipe.yaml").touch()
    return RunFolder(tmp_path)


async def test_the_driver_answers_the_runs_own_user(folder: RunFolder) -> None:
    with folder.driven():
        folder.control.write_text("of a driver that was killed")
        async with controlled(folder, Pool()):
            assert stat.S_IMODE(folder.control.stat().st_mode) == 0o600
            assert await scale(folder.path, "generators", 3) == "3 now"
            with pytest.raises(RecipeError, match="other: the run has no pool of that name; name one of generators"):
                await scale(folder.path, "other", 3)
        assert not folder.control.exists()
        with pytest.raises(RecipeError, match="is starting or ending; try again once it trains"):
            await scale(folder.path, "generators", 3)


async def test_a_disk_that_refuses_the_end_does_not_hide_why_the_run_ended(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    async def end() -> None:
        async with controlled(folder, Pool()):
            folder.control.unlink()
            folder.control.mkdir()  # cannot be unlinked, as on a file system that has become read-only
            raise RecipeError("tasks", "no more tasks", "add some")

    with pytest.raises(RecipeError, match="no more tasks"):
        await end()
    assert f"{folder.control}: Is a directory" in caplog.text


async def test_nobody_gets_in_without_the_token(folder: RunFolder) -> None:
    with folder.driven():
        async with controlled(folder, Pool()):
            address = msgspec.json.decode(folder.control.read_bytes())
            address["endpoint"]["token"] = "A" * len(address["endpoint"]["token"])
            folder.control.write_bytes(msgspec.json.encode(address))
            with pytest.raises(RecipeError, match="is starting or ending"):
                await scale(folder.path, "generators", 3)


async def test_the_machine_of_the_driver_is_named(folder: RunFolder) -> None:
    with folder.driven():
        async with controlled(folder, Pool()):
            address = msgspec.json.decode(folder.control.read_bytes())
            folder.control.write_bytes(msgspec.json.encode({**address, "machine": "far-away"}))
            with pytest.raises(RecipeError, match=r"is driven from far-away, and this is .*; run the command on far-away"):
                await scale(folder.path, "generators", 3)


async def test_a_run_that_another_version_drives_is_not_asked(folder: RunFolder) -> None:
    with folder.driven():
        async with controlled(folder, Pool()):
            address = msgspec.json.decode(folder.control.read_bytes())
            folder.control.write_bytes(msgspec.json.encode({**address, "version": "9.9"}))
            assert await scale(folder.path, "generators", 3) == "3 now"  # it is asked in the same way
            folder.control.write_bytes(msgspec.json.encode({**address, "version": "9.9", "protocol": "f00"}))
            driven = r"is driven by asyncrl 9.9 \(protocol f00\), and this is asyncrl .*; use the version that drives it, or end"
            with pytest.raises(RecipeError, match=driven):
                await scale(folder.path, "generators", 3)
            del address["version"], address["protocol"]
            folder.control.write_bytes(msgspec.json.encode(address))
            with pytest.raises(RecipeError, match="is driven by an older asyncrl, and this is"):
                await scale(folder.path, "generators", 3)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
async def test_another_user_is_refused(folder: RunFolder) -> None:
    with folder.driven():
        async with controlled(folder, Pool()):
            folder.control.chmod(0)
            with pytest.raises(RecipeError, match="may only be read by the user who launched the run"):
                await scale(folder.path, "generators", 3)


def test_a_run_that_is_over_is_refused(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", str(folder.path), "generators=2"]) == ExitCode.REFUSED
    assert "is not running; launch it, or resume it" in capsys.readouterr().err
    assert main(["scale", str(folder.path / "nowhere"), "generators=2"]) == ExitCode.REFUSED
    assert "is not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["generators", "=3", "generators=some", "generators=-1"])
def test_what_is_no_size_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["scale", "run", size])
    assert "POOL=N" in capsys.readouterr().err


POOLS = ["generators.count=2", "generators.pools={small: {count: 1}}"]


class Pools:
    def __init__(self) -> None:
        self.sizes = {"generators": 2, "small": 1}

    async def scale(self, pool: str, size: int) -> str:
        if pool not in self.sizes:
            raise RecipeError(pool, "the run has no pool of that name", "name one")
        self.sizes[pool] = size
        return "coming up"


def control_of(pools: Pools, recipe: Recipe, folder: RunFolder) -> RunControl:
    control = RunControl(recipe, folder, EarlyEnd(print))
    control.begin(pools, print)
    return control


async def test_whoever_follows_a_run_ends_it_early_and_adds_metrics(tmp_path: Path) -> None:
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}", *POOLS]))
    said: list[str] = []
    logged: list[tuple[int, dict[str, float]]] = []
    early = EarlyEnd(said.append)
    control = RunControl(compose(str(folder.recipe)), folder, early)
    with folder.driven():
        async with controlled(folder, control):
            for call in (scale(folder.path, "generators", 3), log(folder.path, 3, {"own/twice": 1.5})):
                with pytest.raises(RecipeError, match="is starting or ending; try again once it trains"):
                    await call
            control.begin(Pools(), lambda step, values: logged.append((step, values)))
            await log(folder.path, 3, {"own/twice": 1.5})
            for reason in ("good enough", "again"):
                assert await finish(folder.path, reason) == "ends after the training step under way"
            control.end()  # whoever follows it hears of the last step after that
            await log(folder.path, 4, {"own/twice": 2.5, "own/pass@4": 1.0})
            for step in (-1, 2**31):
                with pytest.raises(RecipeError, match="is no training step; give a whole number from 0 to 2,147,483,647"):
                    await log(folder.path, step, {"own/twice": 2.5})
            assert await finish(folder.path, "too late") == "is ending already"
            with pytest.raises(RecipeError, match="is starting or ending"):
                await scale(folder.path, "generators", 4)
    assert (early.reason, said) == ("good enough", ["The run ends after this training step: good enough"])
    assert logged == [(3, {"own/twice": 1.5}), (4, {"own/twice": 2.5, metric_name("own/pass@4"): 1.0})]


async def test_a_run_that_is_starting_is_told_to_end_and_ends_after_a_step(tmp_path: Path) -> None:
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    early = EarlyEnd(print)
    with folder.driven():
        asking = asyncio.create_task(finish(folder.path, "asyncrl stop --finish"))  # before its driver listens
        while not asking.done():
            await asyncio.sleep(0)
            async with controlled(folder, RunControl(compose(str(folder.recipe)), folder, early)):
                await asyncio.wait([asking])
        assert await asking == "is starting, and ends after one training step"
    assert early.reason == "asyncrl stop --finish"


async def test_a_run_that_ends_while_it_is_told_to_end_has_done_so(tmp_path: Path) -> None:
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    with folder.driven():  # and does not listen any more
        asking = asyncio.create_task(finish(folder.path, "solved"))
        await asyncio.sleep(0)
        assert not asking.done()
    assert await asking == "is ending already"


@pytest.mark.parametrize("listens", [False, True])
async def test_a_run_that_goes_away_while_it_answers_has_ended_unless_it_still_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    folder.control.write_bytes(b"{}")

    async def lost(*arguments: object) -> str:
        if not listens:
            folder.control.unlink()
        raise RecipeError("", "the run is starting or ending", "try again once it trains")

    monkeypatch.setattr("asyncrl.run.control.ask", lost)
    with folder.driven():
        if listens:
            with pytest.raises(RecipeError, match="starting or ending"):
                await finish(folder.path, "solved")
        else:
            assert await finish(folder.path, "solved") == "is ending already"


async def test_a_resume_begins_with_the_engines_that_were_asked_for(tmp_path: Path) -> None:
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}", *POOLS]))
    recipe = compose(str(folder.recipe))
    control = control_of(Pools(), recipe, folder)
    assert await control.scale("generators", 3) == "coming up"
    assert await control.scale("small", 4) == "coming up"
    again = compose(str(folder.recipe))
    assert (again.generators.count, again.generators.pools["small"].count) == (3, 4)
    assert again == compose(str(folder.recipe), ["generators.count=3"])
    with pytest.raises(RecipeError):
        await control.scale("large", 1)
    assert compose(str(folder.recipe)) == again


async def test_a_run_can_be_resumed_that_was_scaled_beyond_the_bounds_of_tune(tmp_path: Path) -> None:
    """The rules of a recipe refuse bounds that exclude what the run begins with."""
    tune = "tune={knobs: {generators.count: [1, 2], generators.pools.small.count: [1, 8]}}"
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}", *POOLS, tune]))
    control = control_of(Pools(), compose(str(folder.recipe)), folder)
    assert await control.scale("small", 4) == "coming up"
    told = await control.scale("generators", 3)
    assert told == "coming up. That is beyond tune.knobs, whose bounds of generators.count are [1, 3] after a resume"
    again = compose(str(folder.recipe))
    assert again.tune is not None
    assert again.tune.knobs == {"generators.count": (1, 3), "generators.pools.small.count": (1, 8)}


async def test_a_recipe_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}", *POOLS]))
    before = folder.recipe.read_bytes()

    def full(recipe: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "keep_recipe", full)
    told = await control_of(Pools(), compose(str(folder.recipe)), folder).scale("generators", 3)
    assert told.startswith("coming up. The run's recipe.yaml could not be written (No space left on device)")
    assert folder.recipe.read_bytes() == before
