"""Task order is a pure function of seed, epoch and position; bad rows are named by file and line."""

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.task import Task
from buffers.tasks import TaskSource, read_json_lines

TASKS = [Task(id=str(i), prompt="") for i in range(10)]


def ids(source, count):
    return [source.next().id for _ in range(count)]


def test_each_epoch_holds_every_task_once_in_another_order():
    source = TaskSource(TASKS, seed=3)
    first, second = ids(source, 10), ids(source, 10)
    assert sorted(first) == sorted(second) == sorted(t.id for t in TASKS)
    assert first != second


def test_order_depends_on_nothing_but_seed_and_position():
    everything = ids(TaskSource(TASKS, seed=3), 35)
    resumed = TaskSource(TASKS, seed=3)
    resumed.position = 17
    assert ids(resumed, 18) == everything[17:]
    assert ids(TaskSource(TASKS, seed=4), 35) != everything


def test_json_lines(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "1+1", "answer": 2, "id": "a"}\n\n{"prompt": "2+2", "answer": 4}\n')
    first, second = read_json_lines(path, "tasks.train")
    assert (first.id, first.prompt, first.data) == ("a", "1+1", {"answer": 2})
    assert second.id == "tasks.jsonl:3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": ', "tasks.jsonl:2 is no JSON object"),
        ("[1]", "tasks.jsonl:1 is no JSON object"),
        ('{"question": "a"}', "tasks.jsonl:1 has prompt None"),
        ('{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}', "tasks.jsonl:2 repeats the id '1'"),
        ("", "holds no task"),
    ],
)
def test_bad_rows_are_named(tmp_path, text, message):
    path = tmp_path / "tasks.jsonl"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"tasks\.train") as error:
        read_json_lines(path, "tasks.train")
    assert message in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(RecipeError, match="cannot read"):
        read_json_lines(tmp_path / "none.jsonl", "tasks.train")
