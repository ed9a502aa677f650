"""From a recipe's environment section to instances: what is wrong is refused with a remedy."""

import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.core.errors import Interrupted, RecipeError
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.envs import ToolEnvironment
from asyncrl.envs.builtin.calculator import Calculator
from asyncrl.envs.load import environment_class, load_member, make_tasks
from asyncrl.envs.secrets import Secrets

OWN = """
from asyncrl.envs import Environment, ToolEnvironment, tool

class Library(ToolEnvironment):
    def __init__(self, shelf: str, height: int = 2) -> None:
        self.shelf, self.height = shelf, height

    @tool
    async def look_up(self, word: str) -> str:
        "Look up."
        return word

    def reward(self, task, answer):
        return 1.0

class Plain(ToolEnvironment):
    def reward(self, task, answer):
        return 0.0

class Untyped(Plain):
    def __init__(self, shelf) -> None: ...

class Quitting(Plain):
    @classmethod
    def make_tasks(cls, split, count, seed):
        exit()

class Tardy(Plain): ...
Tardy.look_up = tool(lambda self: "late")

class Poorer(Plain): ...
Poorer.tools = {}

class Unfinished(ToolEnvironment): ...

class Stranger: ...
"""

HOSTILE = """
import os, sys
from asyncrl.core.task import Task
from my_library import Plain

class Odd(BaseException):
    "Neither an Exception nor of Python's own."

class Nameless(type):
    @property
    def __name__(cls):
        raise SystemExit("no name")

class Unnamed(Exception, metaclass=Nameless): ...

class LongText(str):
    def __len__(self):
        raise OSError("no length")

class Long(Exception):
    def __str__(self):
        return LongText("x" * 9000)

class Uncountable(list):
    def __len__(self):
        raise RuntimeError("no length")

class Unshowable:
    def __repr__(self):
        raise RuntimeError("no text")

def makes(call):
    class Making(Plain):
        @classmethod
        def make_tasks(cls, split, count, seed):
            return call()
    return Making

def raises(error):
    raise error

RaisesOdd = makes(lambda: raises(Odd("mine")))
RaisesInterrupt = makes(lambda: raises(KeyboardInterrupt))
RaisesUnnamed = makes(lambda: raises(Unnamed("mine")))
RaisesLong = makes(lambda: raises(Long()))
MakesUncountable = makes(lambda: Uncountable())
MakesUnshowable = makes(lambda: [Unshowable()])
Closes = makes(lambda: [sys.stdout.close(), sys.stderr.close()] and [Task(id="t", prompt="p")])
Forks = makes(lambda: [Task(id="forked" if os.fork() == 0 else "t", prompt="p")])

class Unresolved(Plain):
    def __init__(self, shelf: "1 / 0") -> None: ...
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own in the current directory."""
    (tmp_path / "my_library.py").write_text(OWN)
    (tmp_path / "my_hostile.py").write_text(HOSTILE)
    (tmp_path / "needy.py").write_text("import no_such_dependency\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for name in ("my_library", "my_hostile"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "my_library"


def spec(name: str, **options: object) -> ClassEnvironmentConfig:
    return ClassEnvironmentConfig(name=name, options=options, tool_timeout_s=3.0)


def test_built_in_with_options_and_deadline():
    make = load_member(spec("calculator", max_operations=2)).make
    first, second = make(), make()
    assert isinstance(first, Calculator)
    assert first is not second
    assert (first.max_operations, first.tool_timeout_s) == (2, 3.0)
    assert Calculator.tool_timeout_s == ToolEnvironment.tool_timeout_s


def test_a_module_that_cannot_be_imported_is_named_with_its_line(module: str, tmp_path: Path):
    lines = ["from my_library import Plain, tool", "", "class Bare(Plain):", "    @tool", "    async def look(self, thing): ..."]
    (tmp_path / "untyped_tool.py").write_text("\n".join(lines))
    with pytest.raises(RecipeError) as refused:
        load_member(spec("untyped_tool:Bare"))
    assert "Bare: tool look: parameter 'thing' has no type; write `thing: str`, for example" in str(refused.value)
    assert f"({tmp_path / 'untyped_tool.py'}:3)" in str(refused.value)


def test_own_class_from_the_current_directory(module: str):
    instance = load_member(spec(f"{module}:Library", shelf="a")).make()
    assert (type(instance).__name__, instance.shelf, instance.height) == ("Library", "a", 2)
    assert environment_class(f"{module}:Library") is type(instance)
    assert load_member(spec(f"{module}:Plain")).make()


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("calculatr", "no environment 'calculatr'", "did you mean `calculator`?"),
        ("chess", "no environment 'chess'", "known are `calculator`, `"),
        ("my_libary:Library", "no module 'my_libary'", "`module:Class`"),
        ("my_library.py:Library", "no module 'my_library.py'", "write the module's name, `my_library`, and not that of its file"),
        ("mine/library.py:Library", "'mine/library.py' is not a module name", "write the module's name, `mine.library`, and not"),
        ("./library.py:Library", "'./library.py' is not a module name", "write the module's name, `library`, and not"),
        ("my_library:Libary", "class 'Libary' of module my_library does not exist", "did you mean `Library`?"),
        ("my_library:Stranger", "is not an Environment", "known are `Library`, `Plain`"),
        ("my_library:Unfinished", "is an abstract class", "define reward"),
        ("needy:Any", "needs module no_such_dependency", "install it"),
        (":Library", "is not a module name", "`module:Class`"),
    ],
)
def test_wrong_names(module: str, name: str, problem: str, remedy: str):
    with pytest.raises(RecipeError) as refused:
        load_member(spec(name))
    assert refused.value.place == "environment.name"
    assert problem in refused.value.problem
    assert remedy in refused.value.remedy


@pytest.mark.parametrize(
    ("name", "options", "place", "told"),
    [
        ("calculator", {"max_operation": 2}, "environment.options.max_operation", "did you mean `max_operations`?"),
        ("calculator", {"max_operations": 9}, "environment.options.max_operations", "9 does not fit: expected `int` <= 5"),
        ("calculator", {"max_operations": "2"}, "environment.options.max_operations", "calculator(max_operations: int = 3)"),
        ("python", {"limits": {"wall_s": "x"}}, "environment.options.limits.wall_s", "'x' does not fit: expected `float`"),
        ("my_library:Library", {}, "environment.options", "missing required field `shelf`"),
        ("my_library:Plain", {"shelf": 1}, "environment.options", "takes no options"),
        ("my_library:Untyped", {"shelf": 1}, "environment.name", "type the constructor's parameters"),
    ],
)
def test_wrong_options(module: str, name: str, options: dict[str, object], place: str, told: str):
    with pytest.raises(RecipeError) as refused:
        load_member(spec(name, **options))
    assert refused.value.place == place
    assert told.lower() in str(refused.value).lower()


def test_tasks_follow_the_options_and_need_a_source(module: str):
    assert len(make_tasks(spec("calculator", max_operations=1), "train", 5, 0)) == 5
    assert all(
        task.prompt.count("+") + task.prompt.count("-") <= 1
        for task in make_tasks(spec("calculator", max_operations=1), "train", 9, 0)
    )
    with pytest.raises(RecipeError, match="`files` and name the files"):
        make_tasks(spec(f"{module}:Plain"), "train", 5, 0)


def test_an_environment_that_exits_while_it_makes_tasks_is_refused(module: str):
    with pytest.raises(RecipeError, match=r"make_tasks of 'my_library:Quitting' raised SystemExit: None \(.*my_library\.py:"):
        make_tasks(spec(f"{module}:Quitting"), "train", 5, 0)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("RaisesOdd", r"raised Odd: mine \(.*my_hostile\.py:\d+\)"),
        ("RaisesInterrupt", r"raised KeyboardInterrupt: "),
        ("RaisesUnnamed", r"raised Unnamed: mine"),
        ("RaisesLong", r"raised Long: x{2000} \[5,000 characters cut\] x{2000} "),
        ("MakesUncountable", r"raised RuntimeError: no length"),
    ],
)
def test_whatever_make_tasks_raises_is_a_refusal_that_names_it(module: str, name: str, problem: str):
    with pytest.raises(RecipeError, match=f"make_tasks of 'my_hostile:{name}' {problem}"):
        make_tasks(spec(f"my_hostile:{name}"), "train", 5, 0)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Tardy", "look_up was marked, but set on Tardy after its body, so it is no tool; set it in the body"),
        ("Poorer", r"Poorer.tools was set after the body of the class, which holds .*; mark those that it shall have"),
    ],
)
def test_a_tool_that_was_set_after_its_class_is_a_refusal(module: str, name: str, problem: str):
    with pytest.raises(RecipeError, match=problem):
        load_member(spec(f"{module}:{name}"))


def test_an_annotation_that_raises_is_a_refusal(module: str):
    with pytest.raises(RecipeError, match=r"environment 'my_hostile:Unresolved' .* ZeroDivisionError: division by zero"):
        load_member(spec("my_hostile:Unresolved", shelf="a"))


def test_ctrl_c_while_tasks_are_made_is_nobodys_fault(module: str, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*arguments: object) -> None:
        raise Interrupted("stopped by SIGINT")

    monkeypatch.setattr(environment_class(f"{module}:Plain"), "make_tasks", interrupted)
    with pytest.raises(Interrupted):
        make_tasks(spec(f"{module}:Plain"), "train", 5, 0)


DRIVER = """
import os, sys
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.envs.load import make_tasks

for name in sys.argv[1:]:
    (task,) = make_tasks(ClassEnvironmentConfig(name=f"my_hostile:{name}"), "train", 1, 0)
    print(name, task.id, flush=True)
    print("heard", file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("name", ["Closes", "Forks"])
def test_the_command_goes_on_as_one_that_can_speak(module: str, name: str):
    done = subprocess.run([sys.executable, "-c", DRIVER, name], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (f"{name} t\n", "heard\n", 0)


@pytest.mark.parametrize("option", ["split", "count", "seed", "secrets"])
def test_options_called_like_what_the_run_gives_are_refused_by_name(module: str, tmp_path: Path, option: str) -> None:
    own = tmp_path / f"my_{option}.py"
    own.write_text(
        "from my_library import Plain\n"
        "class Own(Plain):\n"
        f"    def __init__(self, {option}: int = 0) -> None: ...\n"
        "    @classmethod\n"
        "    def share(cls, secrets, **options): ...\n"
    )
    member = load_member(ClassEnvironmentConfig(name=f"{own.stem}:Own"))
    method = "share" if option == "secrets" else "make_tasks"
    with pytest.raises(RecipeError, match=rf"environment\.name: {method} of 'my_{option}:Own' gets its own '{option}'"):
        member.share(Secrets({})) if option == "secrets" else member.make_tasks("train", 1, 0)


def test_a_number_where_an_option_is_text_is_to_be_quoted(module: str) -> None:
    with pytest.raises(RecipeError, match=r'shelf: False does not fit: .* quote it, as in shelf: "no" \(use'):
        load_member(ClassEnvironmentConfig(name=f"{module}:Library", options={"shelf": False}))


@pytest.mark.parametrize(
    ("name", "owner"), [("asyncrl.buffers", "asyncrl"), ("random", "Python"), ("asyncrl.generators.chat_format", "asyncrl")]
)
def test_a_module_that_another_one_hides_is_told(module: str, tmp_path: Path, name: str, owner: str) -> None:
    file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(OWN)
    with pytest.raises(RecipeError) as caught:
        environment_class(f"{name}:Library")
    assert f"{file} is hidden by module {name!r} of {owner}; give your module another name" in str(caught.value)
