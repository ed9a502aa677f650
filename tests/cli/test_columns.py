"""docs/reference/trajectories.md says what the files hold, and what it shows works when pasted."""

import re
from pathlib import Path

import pytest
from played_episodes import episode, words

from asyncrl.core.recipe.decode import decode_recipe
from asyncrl.episodes.schema import Kind, TokenFate
from asyncrl.episodes.writer import table, untrained, write
from docs.pages.columns import main, with_columns

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "trajectories.md"


def test_the_columns_on_the_page_are_current(tmp_path):
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    main([str(copy)])
    assert copy.read_text() == PAGE.read_text(), "run `python -m docs.pages.columns`"
    with pytest.raises(ValueError, match="no place for the columns"):
        with_columns("# A page")


def test_every_fate_is_told():
    told = re.findall(r"^\| `(\w+)` \|", PAGE.read_text().partition("| fate |")[2], re.MULTILINE)
    assert told == list(TokenFate)


def test_reading_as_shown_finds_the_episodes(tmp_path, capsys):
    played = [untrained(episode(group), 0, Kind.TRAIN, step=group, version=group, source="s") for group in (1, 1, 2)]
    write(table(played, lambda source: "world", words), tmp_path / "train-000001-0.parquet")
    shown, *_ = re.findall(r"```python\n(import pyarrow.*?)```", PAGE.read_text(), re.DOTALL)
    exec(shown.replace("runs/quickstart-20260901T120000Z/trajectories", str(tmp_path)), {})
    assert "task_id_count: [[2,1]]" in capsys.readouterr().out


def test_the_keys_on_the_page_are_those_of_the_schema():
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    import yaml

    least = {"name": "x", "steps": 1, "model": {"path": "tiny"}, "environment": {"name": "calculator"}}
    assert decode_recipe({**least, **yaml.safe_load(shown)}).tracking.trajectories.count == 8
