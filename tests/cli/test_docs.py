"""The pages of the docs can be found, what they link to is there, and every block of code on them is what it seems to be."""

import argparse
import ast
import importlib.util
import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from asyncrl.cli.main import command_line
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.recipe.compose import compose

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
WRITTEN = [page for page in PAGES if page.name != "CHANGELOG.md" and "<!-- Generated" not in page.read_text(encoding="utf-8")]
"""Pages that people write."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NO_RECIPES = {"tests", "train", "files"}
"""Keys with which a block of YAML begins that shows something else than a recipe: of a task, or of a list of task files."""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http", "mailto:"))]


def in_navigation(entry: object) -> list[str]:
    """The pages of an entry of the site's navigation, and of all below it."""
    if isinstance(entry, str):
        return [entry]
    below = entry.values() if isinstance(entry, dict) else entry
    return [page for each in below for page in in_navigation(each)]


def blocks(*languages: str, pages: list[Path] = WRITTEN) -> list:
    """The blocks of code in these languages, as parameters of a test."""
    return [
        pytest.param(code, id=f"{named(page)} {number}")
        for page in pages
        for number, (language, code) in enumerate(FENCE.findall(page.read_text(encoding="utf-8")))
        if language in languages
    ]


def test_the_index_and_the_navigation_list_every_page():
    every = set(DOCS.rglob("*.md"))
    index = DOCS / "README.md"
    assert every - {index} <= {(DOCS / link).resolve() for link in links(index)}
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(in_navigation(navigation)) == sorted(str(page.relative_to(DOCS)) for page in every)


@pytest.mark.parametrize("page", [*PAGES, DOCS / "asyncrl.ipynb"], ids=named)
def test_links_lead_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_what_a_page_names_of_the_repository_is_there(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for path in re.findall(r"`((?:asyncrl|tests|docs|requirements|buffers|generators|learners)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=named)
def test_a_page_begins_with_what_it_is_for(page):
    title, *rest = [line for line in page.read_text(encoding="utf-8").splitlines() if line and not line.startswith("<!--")]
    assert title.startswith("# ")
    assert re.match(r"[A-Z]", rest[0]), rest[0]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=named)
def test_lists_and_tables_stand_apart_so_that_they_are_shown_as_such(page):
    """Without an empty line before it, the site takes a list for the end of the paragraph above."""
    lines = re.sub(r"^```.*?^```$", "\n", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE).splitlines()
    for above, line in itertools.pairwise(lines):
        if line.startswith(("* ", "1. ")) and above.strip():
            assert above.startswith(("* ", "  ")) or re.match(r"\d+\. ", above), line
        if line.startswith("|") and above.strip():
            assert above.startswith("|"), line


@pytest.mark.parametrize("code", blocks("", pages=PAGES))
def test_a_block_says_what_it_is(code):
    pytest.fail(f"say which language this is, or `text`:\n{code}")


@pytest.mark.parametrize("code", blocks("python"))
def test_python_is_python(code):
    tree = compile(code, "page.md", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("asyncrl"):
            module = __import__(node.module, fromlist=["*"])
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


@pytest.mark.parametrize("code", blocks("json"))
def test_json_is_json(code):
    assert json.loads(code)


def sections(code: str) -> dict:
    found = yaml.safe_load(code)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("code", blocks("yaml"))
def test_yaml_is_a_recipe_that_is_accepted_or_a_part_of_one(code, tmp_path, monkeypatch):
    """A part of a recipe is accepted as a change of the quickstart."""
    found = sections(code)
    if found.keys() & NO_RECIPES:
        return
    assert found.keys() <= {*Recipe.__struct_fields__, "defaults"}
    if not {"name", "steps", "model", "environment"} <= found.keys() and "defaults" not in found:
        found = {"defaults": ["quickstart", "_self_"], **found}
    kind = found.get("environment", {}).get("kind", "class")
    if kind != "class" and "defaults" in found:  # another kind has other keys than the quickstart's environment
        found = {"name": "part", "steps": 1, "model": {"path": "tiny"}, "tasks": {"train": 1, "evaluation": 1}, **found}
        del found["defaults"]
    found.get("model", {}).update({"path": "tiny"} if "path" in found.get("model", {}) else {})  # there may be no network
    found.get("algorithm", {}).get("kl", {}).pop("reference", None)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(found))
    monkeypatch.chdir(tmp_path)
    assert compose(str(tmp_path / "recipe.yaml")).name


def commands(code: str) -> list[list[str]]:
    """The words of each command of asyncrl in a block that shows a terminal: in loops, behind variables and before pipes, too."""
    found = []
    for line in re.sub(r"\\\n(?:>\s*)?", " ", code).splitlines():
        for part in re.split(r"\s&&\s|\s--\s(?=asyncrl|\.venv)", re.sub(r"^(?:\$ |> )?\s*", "", line)):
            if run := re.match(r"(?:sudo )?(?:\w+=\S+ )*(?:\.venv/bin/)?asyncrl (.*)", part):
                words = [re.sub(r"\$\w+", "0", word) for word in shlex.split(run[1], comments=True)]
                found += [words[: words.index("|")] if "|" in words else words]
    return found


def check_keys(words: list[str]) -> None:
    for word in words:
        key = re.match(r"[+~]*([a-z_]+(?:\.[a-z_]+)*)=", word)
        if key and key[1] != "name":
            assert key[1] in KEYS or key[1] in GROUPS, word


REFERENCE = (DOCS / "reference" / "recipe.md").read_text(encoding="utf-8")
KEYS = {each.removesuffix(".kind") for each in re.findall(r"^\| `([\w.\[\]]+)` \|", REFERENCE, re.MULTILINE)}
KEYS |= {f"{key}.{tag}" for key, tag in re.findall(r"^## `([\w.]+)`, `(\w+): ", REFERENCE, re.MULTILINE)}
GROUPS = {folder.name for folder in (ROOT / "recipes").iterdir() if folder.is_dir()}


@pytest.mark.parametrize("code", blocks("console", "bash", "sh"))
def test_a_command_is_one(code, tmp_path, monkeypatch, capsys):
    """The real parser takes it, and recipes have the keys that it sets."""
    monkeypatch.chdir(tmp_path)
    for words in commands(code):
        try:
            arguments, left = command_line().parse_known_args(words)
        except SystemExit:
            pytest.fail(f"asyncrl {shlex.join(words)}: {capsys.readouterr().err}")
        assert not [word for word in left if word.startswith("-")], words
        check_keys([*getattr(arguments, "overrides", ()), *left])
    for module in re.findall(r"python -m (asyncrl[\w.]*)", code):
        assert importlib.util.find_spec(module), module


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_a_command_in_a_sentence_is_one(page):
    """It may be named without its arguments; commands and options are those that there are."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for written in re.findall(r"`(?:\.venv/bin/)?asyncrl ([^`]+)`", text):
        parser, words = command_line(), written.replace("|", " ").split()
        for word in words:
            choices = [each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
            if choices and not word.startswith("-") and word != "COMMAND":
                assert word in choices[0], written
                parser = choices[0][word]
            elif word.startswith("--"):
                assert word in parser._option_string_actions, written
        check_keys(words)


def test_there_is_something_to_test():
    assert len(blocks("yaml")) > 18
    assert len(blocks("python")) > 25
    assert sum(len(commands(each.values[0])) for each in blocks("console", "bash", "sh")) > 50
    assert len(KEYS) > 250
