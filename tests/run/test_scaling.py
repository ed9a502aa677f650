"""What `asyncrl scale` asked for is in the run's recipe, so that a resume begins with it."""

from pathlib import Path

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.recipe.compose import compose
from asyncrl.run.scaling import Scaling

POOLS = ["generators.count=2", "generators.pools={small: {count: 1}}"]


class Pools:
    def __init__(self) -> None:
        self.sizes = {"generators": 2, "small": 1}

    async def scale(self, pool: str, size: int) -> str:
        if pool not in self.sizes:
            raise RecipeError(pool, "the run has no pool of that name", "name one")
        self.sizes[pool] = size
        return "coming up"


async def test_a_resume_begins_with_the_engines_that_were_asked_for(tmp_path: Path) -> None:
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}", *POOLS]))
    recipe = compose(str(folder.recipe))
    scaling = Scaling(Pools(), recipe, folder)
    assert await scaling.scale("generators", 3) == "coming up"
    assert await scaling.scale("small", 4) == "coming up"
    again = compose(str(folder.recipe))
    assert (again.generators.count, again.generators.pools["small"].count) == (3, 4)
    assert again == compose(str(folder.recipe), ["generators.count=3"])
    with pytest.raises(RecipeError):
        await scaling.scale("large", 1)
    assert compose(str(folder.recipe)) == again


async def test_a_recipe_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}", *POOLS]))
    before = folder.recipe.read_bytes()

    def full(recipe: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "keep_recipe", full)
    told = await Scaling(Pools(), compose(str(folder.recipe)), folder).scale("generators", 3)
    assert told.startswith("coming up. The run's recipe.yaml could not be written (No space left on device)")
    assert folder.recipe.read_bytes() == before
