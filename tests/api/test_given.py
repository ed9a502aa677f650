"""Classes and functions of a program, as they are given to a run: named where others can import them, else copied or refused."""

import subprocess
import sys
import textwrap
from inspect import signature
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect

import asyncrl
from asyncrl.api.given_classes import changes_for, written
from asyncrl.envs.builtin.calculator import Calculator
from asyncrl.run.recipe.compose import compose

CELL = """
import dataclasses, sys, threading
from pathlib import Path
from asyncrl.api.given_classes import changes_for, written
from asyncrl.core.errors import RecipeError
from asyncrl.envs import ToolEnvironment, tool
from asyncrl.envs.builtin.calculator import Calculator

BONUS = 0.25
lock = threading.Lock()

@dataclasses.dataclass
class Shelf:
    books: int = 3

class Base(Calculator):
    shelf = Shelf()

class Mine(Base):
    def reward(self, task, answer):
        return super().reward(task, answer) + BONUS * self.shelf.books

    @staticmethod
    @tool(process=True)
    def count(number: int) -> int:
        '''Count.'''
        return number + 1

class Stuck(Calculator):
    def reward(self, task, answer):
        with lock:
            return 1.0

def loss(tokens):
    return tokens.log_ratio.exp() * BONUS
"""
SHOW = """
with written("quickstart", {}, changes_for(Mine, loss, None)) as given:
    (file,) = Path(given.code).iterdir()
    print(file.stem, [text.replace(file.stem, "M") for text in given.overrides])
    (Path(sys.argv[1]) / file.name).write_text(file.read_text())
try:
    with written("quickstart", {}, changes_for(Stuck, None, None)):
        pass
except RecipeError as error:
    print(error)
"""
USE = """
import sys
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.load import load_member
member = load_member(ClassEnvironmentConfig(name=sys.argv[1] + ":Mine"))
environment = member.make()
(task,) = member.make_tasks("train", 1, 0)
import asyncio
from asyncrl.core.plug_ins.plug_in_function import load_function
asyncio.run(environment.reset(task))
from asyncrl.core.messages import ToolCall
from asyncrl.envs import Action
calls = [ToolCall("calculator", {"expression": "3*4"}), ToolCall("calculator", {"x": 1})]
answered = asyncio.run(environment.step(Action("", tuple(calls))))
print([message.content for message in answered.observation.messages])
print(member.environment.__module__ == sys.argv[1], member.process_class.module == sys.argv[1], environment.reward(task, "wrong"))
print(load_function(sys.argv[1] + ":loss", {}, "algorithm.loss").file)
"""


def python(text: str, *arguments: str, where: Path, piped: bool = True) -> list[str]:
    command = [sys.executable, "-", *arguments] if piped else [sys.executable, "-c", text, *arguments]
    done = subprocess.run(command, input=text if piped else None, cwd=where, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_a_program_defines_is_copied_alike_by_each_process_and_named_where_it_cannot_be(tmp_path: Path):
    name, _, rest = (shown := python(CELL + SHOW, str(tmp_path), where=tmp_path))[0].partition(" ")
    assert name.startswith("given_")
    assert rest == str(
        [
            *("environment.kind='class'", "environment.name='M:Mine'"),
            *("algorithm.loss=null", "algorithm.loss.kind='custom'", "algorithm.loss.name='M:loss'"),
        ]
    )
    assert "environment.name: class Stuck cannot be given to the run's processes: it uses `lock`, a lock (" in shown[1]
    assert "which cannot leave this process; make it where it is used, e.g. in __init__" in shown[1]
    first = (tmp_path / f"{name}.py").read_bytes()
    assert python(CELL + SHOW, str(tmp_path), where=tmp_path)[0].startswith(f"{name} "), "a tiny model would be made again"
    assert (tmp_path / f"{name}.py").read_bytes() == first
    used = python(USE, name, where=tmp_path, piped=False)
    assert used[0] == "['12', 'error: Object contains unknown field `x`; use calculator(expression: str)']"
    assert used[1] == "True True 0.75"


def test_what_others_can_import_is_named_and_not_copied():
    with written("quickstart", {}, changes_for(Calculator, None, None)) as given:
        assert given.code is None
        assert given.overrides[1] == "environment.name='asyncrl.envs.builtin.calculator:Calculator'"


def test_a_class_that_a_function_defines_is_copied():
    class Local(Calculator):
        pass

    with written({"defaults": ["quickstart", "_self_"], "environment": {"name": Local}}, {}, {}) as given:
        (file,) = Path(given.code).iterdir()
        assert f"name: {file.stem}:Local" in Path(given.recipe).read_text()


def test_a_class_whose_copy_would_lack_its_fields_is_refused():
    class Found(msgspec.Struct):
        number: int

    class Mine(Calculator):
        def reward(self, task, answer):
            return float(Found(3).number)

    problem = "class Found, a msgspec.Struct of this program, would lose its fields in a copy; make it a dataclass"
    with pytest.raises(asyncrl.RecipeError, match=problem):
        asyncrl.launch("quickstart", environment=Mine)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"environment": Calculator()}, "environment: .* is no class; give the class itself"),
        ({"loss": "my:loss"}, "algorithm.loss: 'my:loss' is no function"),
        ({"schedule": lambda at: 1.0}, "learner.schedule.name: a lambda has no name; give a function that is made with `def`"),
    ],
)
def test_what_cannot_be_given_is_refused_with_its_key(given: dict[str, object], problem: str):
    with pytest.raises(asyncrl.RecipeError, match=problem):
        asyncrl.launch("quickstart", **given)


def test_two_of_one_name_are_refused_since_one_would_be_taken_for_the_other():
    def made(factor):
        def inner(*arguments):
            return factor

        return inner

    one, other = made(1), made(2)
    problem = "learner.schedule.name: .* is called 'inner', as is what algorithm.loss.name has; give one of them another name"
    with pytest.raises(asyncrl.RecipeError, match=problem):
        asyncrl.launch("quickstart", loss=one, schedule=other)
    other.__name__ = "outer"
    with written("quickstart", {}, changes_for(None, one, other)) as given:
        (file,) = Path(given.code).iterdir()
        assert f"algorithm.loss.name='{file.stem}:inner'" in given.overrides
        assert f"learner.schedule.name='{file.stem}:outer'" in given.overrides
    with written("quickstart", {}, changes_for(None, one, one)) as given:
        assert len(given.overrides) == 6


def test_a_class_may_take_the_place_of_another_that_the_recipe_has():
    class Before(Calculator):
        pass

    class Local(Calculator):
        pass

    with written({"environment": {"name": Before}}, {}, changes_for(Local, None, None)) as given:
        (file,) = Path(given.code).iterdir()
        assert f"name: {file.stem}:Before" in Path(given.recipe).read_text()
        assert f"environment.name='{file.stem}:Local'" in given.overrides


@pytest.mark.parametrize("by", ["keyword", "override", "section"])
def test_a_class_that_a_cell_has_defined_once_more_takes_the_place_of_the_one_before(by):
    def made(hint):
        class Local(Calculator):
            system_prompt = hint

        return Local

    before, after = made("before"), made("after")
    overrides = {"keyword": {}, "override": {"environment.name": after}, "section": {"environment": {"name": after}}}[by]
    changes = changes_for(after if by == "keyword" else None, None, None)
    with written({"environment": {"name": before}}, overrides, changes) as given:
        (file,) = Path(given.code).iterdir()
        assert f"environment.name='{file.stem}:Local'" in given.overrides
        namespace = {"__name__": file.stem}
        exec(file.read_text(), namespace)
        assert namespace["Local"].system_prompt == "after"
    with (
        pytest.raises(asyncrl.RecipeError, match=r"environment.options.both.1: .* is called 'Local', as is what .*both.0 has"),
        written("quickstart", {"environment.options": {"both": [before, after]}}, {}),
    ):
        pass


def test_a_loss_takes_the_place_of_all_that_the_recipe_says_of_one(tmp_path: Path):
    base = {"defaults": ["quickstart", "_self_"], "algorithm": {"loss": {"kind": "ppo_clip", "clip_low": 0.1}}}

    def loss(tokens):
        return tokens.advantages

    with written(base, {"algorithm.loss.options": {"scale": 2}}, changes_for(None, loss, None)) as given:
        composed = compose(given.recipe, given.overrides)
    assert msgspec.to_builtins(composed.algorithm.loss) | {"name": ""} == {"kind": "custom", "name": "", "options": {"scale": 2}}


def test_typed_objects_dictionaries_and_files_are_one_recipe(tmp_path: Path):
    sections = asyncrl.sections
    typed = asyncrl.Recipe(
        name="same",
        steps=7,
        model=sections.ModelConfig(path="tiny", max_context=256),
        environment=sections.ClassEnvironmentConfig(name=Calculator, max_turns=3),
        algorithm=sections.AlgorithmConfig(loss=sections.DivergenceMaskLossConfig()),
        generators=sections.GeneratorsConfig(pools={"small": sections.PoolConfig(count=1, max_running=16)}),
    )
    mapping = {
        "name": "same",
        "steps": 7,
        "model": {"path": "tiny", "max_context": 256},
        "environment": {"kind": "class", "name": Calculator, "max_turns": 3},
        "algorithm": {"loss": {"kind": "dppo"}},
        "generators": {"pools": {"small": {"count": 1, "max_running": 16}}},
    }
    text = """
        name: same
        steps: 7
        model: {path: tiny, max_context: 256}
        environment: {kind: class, name: "asyncrl.envs.builtin.calculator:Calculator", max_turns: 3}
        algorithm: {loss: {kind: dppo}}
        generators: {pools: {small: {count: 1, max_running: 16}}}
    """
    (file := tmp_path / "same.yaml").write_text(textwrap.dedent(text))
    composed = []
    for recipe in (typed, mapping, file):
        with written(recipe, {}, {}) as given:
            composed.append(compose(given.recipe, given.overrides))
    assert composed[0] == composed[1] == composed[2]


def test_a_typed_section_refuses_keys_as_a_file_does():
    with pytest.raises(asyncrl.RecipeError) as refused:
        asyncrl.Recipe("quickstart", steps=3, nam="mine", environment=None, lr=1e-4)
    assert str(refused.value).startswith(
        "Recipe: 'quickstart' has no key; write key=value; the keys of Recipe are name, steps, model"
    )
    assert refused.value.__notes__ == [
        "Recipe.nam: unknown key; did you mean `Recipe.name`?",
        "Recipe.lr: unknown key; did you mean `Recipe.learner.lr`?",
        "Recipe.name: missing; give name=..., which has no default",
        "Recipe.model: missing; give model=..., which has no default",
    ]
    assert refused.value.__context__ is None, "and says nothing else"
    with pytest.raises(
        asyncrl.RecipeError, match=r"^FixedKlConfig\.kind: unknown key; take it out: FixedKlConfig is of kind fixed"
    ):
        asyncrl.sections.FixedKlConfig(kind="fixed")
    for name in asyncrl.sections.__all__:
        section = getattr(asyncrl.sections, name)
        with pytest.raises(asyncrl.RecipeError, match=f"^{name}.zzz: unknown key; "):
            section(zzz=1)
        assert list(signature(section).parameters) == list(section.__struct_fields__), "which editors complete"


def test_every_section_of_a_recipe_has_a_type():
    found: set[type] = set()

    def look_at(kind: inspect.Type) -> None:
        if isinstance(kind, inspect.StructType) and kind.cls not in found:
            found.add(kind.cls)
            for field in kind.fields:
                look_at(field.type)
        for name in ("item_type", "value_type"):
            if hasattr(kind, name):
                look_at(getattr(kind, name))
        for each in (*getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
            look_at(each)

    look_at(inspect.type_info(asyncrl.Recipe))
    assert set(asyncrl.sections.__all__) == {kind.__name__ for kind in found} - {"Recipe"}
