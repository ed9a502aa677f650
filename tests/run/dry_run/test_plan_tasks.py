"""Tasks of files and of environments, as the plan reads and refuses them."""

import sys

import pyarrow.parquet
import pytest
from planned import ROOMY
from rich.console import Console

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.dry_run.plan import Source, make_plan
from asyncrl.run.dry_run.plan_view import plan_view
from asyncrl.run.recipe.compose import compose


def of_files(*overrides: str, train: str, evaluation: str) -> Recipe:
    sources = [f"+tasks.train=[{train}]", f"+tasks.evaluation=[{evaluation}]"]
    return compose("quickstart", ["~tasks", "+tasks.kind=files", *sources, *overrides])


def test_every_source_of_tasks_is_read_and_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n{"prompt": \n{"prompt": "2+2", "answer": 4}\n')
    table = pyarrow.table({"question": ["a", "b", None], "answer": [1, 2, 3]})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    train = f"{{path: {tmp_path}/a.jsonl}}, {{path: {tmp_path}/b.parquet, columns: {{prompt: question}}}}"
    (tmp_path / "c.jsonl").write_text('{"prompt": "3+3", "answer": 6}')
    evaluation = f"{{path: {tmp_path}/c.jsonl}}"
    recipe = of_files("+tasks.on_malformed=skip", train=train, evaluation=evaluation)
    plan = make_plan(recipe, ROOMY)
    assert plan.sources == (
        Source("train", "a.jsonl", 2, 1),
        Source("train", "b.parquet", 2, 1),
        Source("evaluation", "c.jsonl", 1, 0),
    )
    with pytest.raises(RecipeError, match=r"a\.jsonl:2 is not a JSON object") as caught:
        make_plan(of_files(train=train, evaluation=evaluation), ROOMY)
    assert caught.value.place == "tasks.train[0]"


MANY_TASKS = """
from asyncrl.core.messages import Message
from asyncrl.core.task import Task
from asyncrl.envs.base import Environment, Observation, StepResult

class Many(Environment):
    @classmethod
    def make_tasks(cls, split, count, seed):
        assert count <= 20_000, count
        return [Task(id=str(number), prompt="p") for number in range(count)]

    async def reset(self, task): return Observation((Message('user', task.prompt),))
    async def step(self, action): return StepResult(Observation(()), 0.0, True)
"""


def test_of_many_tasks_that_an_environment_makes_the_first_are_made_and_checked(tmp_path, monkeypatch):
    (tmp_path / "many_tasks.py").write_text(MANY_TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = make_plan(
        compose("quickstart", ["environment.name=many_tasks:Many", "tasks.train=1000000", "tasks.evaluation=20000"]), ROOMY
    )
    train, evaluation = plan.sources
    assert train == Source("train", "generated", 1_000_000, 0, counted=False)
    assert evaluation == Source("evaluation", "generated", 20_000, 0)
    console = Console(width=200)
    with console.capture() as capture:
        console.print(plan_view(plan, compose("quickstart")))
    assert "at most 1,000,000" in capture.get()


def test_task_files_must_be_there(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1"}')
    with pytest.raises(RecipeError) as caught:
        make_plan(of_files(train=f"{{path: {tmp_path}/train.jsonl}}", evaluation=f"{{path: {tmp_path}/no.jsonl}}"), ROOMY)
    assert caught.value.place == "tasks.evaluation[0]"


def test_the_curriculum_must_be_there(tmp_path):
    for name in ("easy", "hard", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "1+1"}')
    easy, hard, held_out = (f"{{path: {tmp_path}/{name}.jsonl}}" for name in ("easy", "hard", "held_out"))
    recipe = of_files("+tasks.curriculum.name=no_such_module:Ladder", train=f"{easy}, {hard}", evaluation=held_out)
    with pytest.raises(RecipeError) as caught:
        make_plan(recipe, ROOMY)
    assert caught.value.place == "tasks.curriculum.name"


MADE = {
    "[]": "returned []",
    "None": "returned None",
    "[{'prompt': 'a'}]": "returned {'prompt': 'a'} at 0",
    "[Task(id=1, prompt='a')]": "returned Task(id=1, prompt='a', data={}, environment='', tools=()) at 0",
    "[Task(id='1', prompt='a'), Task(id='1', prompt='b')]": "two tasks with the same id",
    "[][0]": "raised IndexError",
    "[Task(id='1', prompt='a', data={'at': (1, 2)})]": "data['at'] would reach the environment as [1, 2], where (1, 2) is meant",
    "[Task(id='1', prompt='a', data={'at': {1}})]": "data['at'] would reach the environment as [1], where",
    "[Task(id='1', prompt='a', data={'n': 2**70})]": "data['n'] cannot be sent to the environment: can't serialize ints",
    "[Task(id='1', prompt='a', data={'f': print})]": "data['f'] cannot be sent to the environment: Encoding objects",
    "[Task(id='1', prompt='a', data={1: 2})]": "data[1] cannot be sent to the environment: Expected `str`, got `int`",
    "[Task(id='1', prompt='a', data=[3])]": "returned task '1', whose data is [3]",
    "[Task(id='1', prompt='a', data={'x': reduce(lambda x, _: [x], range(960), 0)})]": "'1', whose data is nested more than 100",
    "[Task(id='1', prompt='a', data={'x': reduce(lambda x, _: [x], range(100), 0)})]": "nested more than 100 levels deep; use",
    "[Task(id='1', prompt='\\ud800')]": "prompt cannot be sent to the environment: 'utf-8' codec can't encode",
    "[Task(id='1', prompt='a', data={FailureKind.DATA: 2})]": "key would reach the environment as 'data'",
    "[type('Unshowable', (), {'__repr__': lambda self: 1 / 0})()]": "returned what cannot be looked at: ZeroDivisionError",
    "[type('Mine', (Task,), {})(id='1', prompt='a')]": "returned a Mine; return Tasks themselves, all else in data",
}


@pytest.mark.parametrize(("made", "told"), MADE.items())
def test_what_an_environment_makes_is_checked(tmp_path, monkeypatch, made, told):
    (tmp_path / "my_world.py").write_text(
        "from functools import reduce\n"
        "from asyncrl.core.errors import FailureKind\n"
        "from asyncrl.core.task import Task\n"
        "from asyncrl.envs.builtin.calculator import Calculator\n"
        "class World(Calculator):\n"
        "    @classmethod\n"
        "    def make_tasks(cls, split, count, seed, **options):\n"
        f"        return {made}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_world", raising=False)
    with pytest.raises(RecipeError) as caught:
        make_plan(compose("quickstart", ["environment.name=my_world:World"]), ROOMY)
    assert told in str(caught.value)
