"""What a sweep will run is known before it begins: the recipe of each point, with each seed."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose
from asyncrl.sweeps.prepared import Asked, prepare

RECIPE = """
defaults: [quickstart, _self_]
seed: 3
environment: {{options: {{note: "{note}"}}}}
"""


@pytest.mark.parametrize(
    ("note", "overrides", "seeds", "notes", "checked"),
    [
        ("${seed}", ("steps=5,6",), 2, [3, 3, 4, 4], 4),
        ("${seed}", ("steps=5,6", "seed=8"), 2, [8, 8, 9, 9], 4),
        ("${seed}", ("steps=5,6", "seed=5,7"), None, [5, 5, 7, 7], 4),
        ("fixed", ("steps=5,6",), 2, ["fixed"] * 4, 2),
        ("fixed", ("environment.options.note='${seed}',plain",), 2, [3, "plain", 4, "plain"], 3),
    ],
)
def test_what_follows_the_seed_follows_it_in_each_point(
    tmp_path: Path, note: str, overrides: tuple[str, ...], seeds: int | None, notes: list[object], checked: int
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(RECIPE.format(note=note))
    plan: Any = SimpleNamespace(total_bytes=1, processes=(), machine=Machine.here(), remarks=())
    accepted = []

    def accept(own: Sequence[str]) -> tuple[Recipe, Any]:
        accepted.append(own)
        return compose(str(recipe), own), plan

    made = prepare(Asked(recipe=str(recipe), overrides=overrides, seeds=seeds), accept, lambda text: None)
    assert len(accepted) == checked
    found = []
    for point in made.sweep.points:
        file = tmp_path / f"{point.name}.yaml"
        file.write_text(made.recipes[point.name])
        read = compose(str(file))
        assert (read.seed, read.name) == (point.seed, point.name)
        found.append(read.environment.options["note"])
    assert found == notes
