import re
from pathlib import Path

from asyncrl.run.recipe.compose import compose
from docs.pages.recipe import main, reference

COMMITTED = Path(__file__).parents[2] / "docs" / "reference" / "recipe.md"


OTHERS = COMMITTED.parents[1] / "start" / "from-other-trainers.md"


def test_the_keys_that_those_of_other_trainers_are_called_here_exist():
    page = OTHERS.read_text()
    ours = [row.split("|")[4] for row in page.splitlines() if row.count("|") == 5]
    keys = {key for cell in ours for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)", cell) if not key.endswith(".md")}
    assert len(keys) > 40
    known = COMMITTED.read_text()
    assert {key for key in keys if f"| `{key.removesuffix('.kind')}` |" not in known} == set()


def test_the_recipe_for_those_who_come_from_other_trainers_is_accepted(tmp_path):
    (recipe,) = re.findall(r"```yaml\n(.*?)```", OTHERS.read_text(), re.DOTALL)
    (tmp_path / "grpo.yaml").write_text(recipe)
    assert compose(str(tmp_path / "grpo.yaml"), ["buffer.max_staleness=4"]).algorithm.minibatches == 2


def test_the_committed_reference_is_current(tmp_path):
    main([str(tmp_path / "recipe.md")])
    assert (tmp_path / "recipe.md").read_text() == COMMITTED.read_text(), "run `python -m docs.pages.recipe`"


def test_ranges_defaults_and_kinds_are_told():
    text = reference()
    assert "| `learner.min_lr_ratio` | a number >= 0 and <= 1 | `1.0` |" in text
    assert "| `model.path` | text, not empty | required |" in text
    assert "## `tasks`, `kind: files`" in text
    assert "| `tasks.train` | a list of sections, see [tasks.train[]](#taskstrain) | required |" in text
    assert "| `tasks.train[].weight` | a number > 0 | `1.0` |" in text
    assert "| `tasks.curriculum` | a section or null, see [tasks.curriculum](#taskscurriculum) | `null` |" in text
    assert "| `buffer.filters` | a list of sections of kind `zero_variance` or `accuracy_window` | `[]` |" in text
    assert "## `algorithm.loss`, `kind: dppo` (default)" in text
    assert "| `tracking.also` | a list, each one of opentelemetry, ray, tensorboard, wandb |" in text


def test_what_several_places_and_kinds_have_in_common_is_written_once():
    text = reference()
    assert text.count("the most tool calls in an episode") == 1
    assert "As in [environment, kind: class (default)](#environment-kind-class-default): `max_calls`" in text
    assert "## `learner.placement`\n\nAs [generators.placement](#generatorsplacement).\n" in text
    assert "| `learner.placement.strategy` |" not in text
