"""What docs/how-to/tasks.md shows works when pasted."""

import json
import re
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
import yaml

from asyncrl.core.recipe.tasks import TaskFileConfig
from asyncrl.run.buffer.tasks import load_held_out_tasks, make_task_stream
from asyncrl.run.dry_run.plan import Source, make_plan
from asyncrl.run.recipe.compose import compose

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "tasks.md").read_text()


def save_split(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    table = pa.table({"question": [f"{i} apples" for i in range(count)], "answer": list(range(count))})
    with pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": None}))


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """The page's recipe, beside the data that it names."""
    recipe_text, *_ = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (module,) = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "Learnable" in each]
    (tmp_path / "recipe.yaml").write_text(recipe_text)
    (tmp_path / "my_curricula.py").write_text(module)
    words = tmp_path / "data" / "word-problems"
    save_split(words / "train", 40)
    save_split(words / "test", 5)
    (words / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    (tmp_path / "data" / "sums.jsonl").write_text(
        '{"prompt": "1+1", "id": "a-1", "answer": 2}\nnot a task\n{"prompt": "2+2", "answer": 4}\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield compose("recipe.yaml")
    sys.modules.pop("my_curricula", None)


def test_its_sources_are_found_and_counted(recipe):
    assert make_plan(recipe).sources == (
        Source("train", "sums.jsonl", 2, 1),
        Source("train", "word-problems:train", 40, 0),
        Source("evaluation", "word-problems:test", 5, 0),
    )
    assert [each.task.prompt for each in load_held_out_tasks(recipe)] == [f"{i} apples" for i in range(5)]


def test_its_columns_are_those_of_the_schema():
    _, columns = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    sources = msgspec.convert(yaml.safe_load(columns)["train"], tuple[TaskFileConfig, ...])
    assert [source.reference for source in sources] == [None, None, None, "answer"]
    assert sources[2].json == ("answers", "tools")


def test_its_curriculum_moves_to_what_is_sometimes_solved_and_goes_on_after_a_resume(recipe):
    stream = make_task_stream(recipe)
    assert Counter(stream.next().source for _ in range(100)) == {"sums.jsonl": 50, "word-problems:train": 50}
    for _ in range(50):
        stream.observe("sums.jsonl", [1.0, 1.0])
        stream.observe("word-problems:train", [0.0, 1.0])
    resumed = make_task_stream(recipe)
    resumed.restore(stream.state())
    drawn = [stream.next() for _ in range(100)]
    assert Counter(task.source for task in drawn)["word-problems:train"] > 85
    assert [resumed.next() for _ in range(100)] == drawn
    assert {task.task.id for task in drawn if task.source == "sums.jsonl"} == {"sums.jsonl/a-1", "sums.jsonl:3"}
