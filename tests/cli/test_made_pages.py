"""Pages that are made from the code are current, and leave nothing out."""

import ast
import re
from pathlib import Path

import pytest

from docs.pages import api, commands, errors
from docs.pages.error_messages import Message, error_classes, messages, read_modules

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("module", "page"),
    [(commands, "reference/cli.md"), (api, "reference/api.md"), (errors, "operations/errors.md")],
    ids=["commands", "api", "errors"],
)
def test_a_committed_page_is_current(module, page, tmp_path):
    module.main([str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text() == (DOCS / page).read_text(), f"run `python -m {module.__name__}`"


def test_the_command_line_is_there_with_ranges_and_examples():
    page = commands.commands_page()
    assert "### `asyncrl env check`" in page
    samples = "episodes of each task (default evaluation.samples; where that is null 8, or 1 if evaluation.temperature is 0)"
    assert f"| `--samples N` | {samples} |" in page
    assert "asyncrl launch --resume runs/NAME-TIME steps=200    and change its recipe" in page


def test_what_programs_import_is_there_with_signatures():
    page = api.api_page()
    assert "launch(recipe: RecipeLike" in page
    assert "* `RecipeError`: the recipe was refused; nothing was started. Further problems are its notes." in page
    assert "### `ToolEnvironment`" in page
    assert "Unknown" not in page


def words(text: str) -> str:
    """The letters of a text, so that marks for Markdown do not matter."""
    return re.sub(r"[^a-z]+", " ", re.sub(r"&lt;|<[^>]*>", " ", text.lower())).strip()


def test_no_text_that_is_written_where_an_error_is_made_is_missing():
    """A second way to find them, which follows nothing: the texts within the brackets."""
    page = words((DOCS / "operations" / "errors.md").read_text())
    modules = read_modules(DOCS.parent)
    made = list(messages(modules, error_classes(modules)))
    missing = [
        f"{module.file}:{call.lineno}: {part}"
        for module, call, _ in made
        for given in call.args
        for node in (given.values if isinstance(given, ast.JoinedStr) else [given])
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for part in re.split(r"[;`|<>{}]|docs/\S+", node.value)
        if len(part.split()) >= 4 and words(part) not in page
    ]
    assert missing == []
    assert len(made) > 600


MADE = '''
from somewhere import AsyncRLError, RecipeError

_AGAIN = "copy it again"


class Full(AsyncRLError):
    """A disk is full."""

    def __init__(self, folder, wanted):
        super().__init__(f"{folder} is full: {wanted:,} bytes wanted; make room there")


class Broken(AsyncRLError):
    """Something broke."""


def look(path, place):
    problem = "never said"
    if path.missing:
        problem = f"there is no {path.name}"
        raise RecipeError(place, problem, _AGAIN)
    if path.old:
        problem = f"{path} is old" if path.dated else "it has no date"
        raise RecipeError(place, problem, "take another one")
    problem, remedy = f"{path} is new", "wait"
    raise RecipeError("model.path", problem, remedy)


def check(path):
    look(path, "learner.path")
    for error in path.errors:
        fail(f"line {error.line} is wrong")
        raise Broken(str(error))


def fail(told):
    raise Broken(f"{told}; correct it")


def fill(folder):
    raise Full(folder, 3)
'''

CORE = '''
class AsyncRLError(Exception):
    """Base."""


class RecipeError(AsyncRLError):
    """Refused."""

    def __init__(self, place, problem, remedy):
        super().__init__(f"{place}: {problem}; {remedy}")
'''


@pytest.fixture
def made(tmp_path) -> Path:
    (tmp_path / "asyncrl").mkdir()
    (tmp_path / "asyncrl" / "core.py").write_text(CORE)
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "made.py").write_text(MADE)
    (tmp_path / "asyncrl" / "room").symlink_to(tmp_path / "room")
    return tmp_path


def test_texts_are_followed_to_where_they_are_written(made):
    modules = read_modules(made)
    said = {each for _, _, found in messages(modules, error_classes(modules)) for each in found}
    assert said == {
        Message("RecipeError", "learner.path", "there is no <name>", "copy it again"),
        Message("RecipeError", "learner.path", "<path> is old", "take another one"),
        Message("RecipeError", "learner.path", "it has no date", "take another one"),
        Message("RecipeError", "model.path", "<path> is new", "wait"),
        Message("Broken", "", "line <line> is wrong", "correct it"),
        Message("Full", "", "<folder> is full: <wanted> bytes wanted", "make room there"),
    }


def test_an_error_of_which_nobody_says_what_to_do_is_refused(made):
    (made / "room" / "silent.py").write_text('from somewhere import Broken\n\nraise Broken("it is broken for good")\n')
    with pytest.raises(ValueError, match="give it a remedy"):
        errors.errors_page(made)


def test_the_page_of_made_errors(made):
    page = errors.errors_page(made)
    assert "| `model.path` | &lt;path> is new | wait |" in page
    assert "A disk is full.\n\n| what it says | what to do |\n|---|---|\n| &lt;folder> is full" in page
