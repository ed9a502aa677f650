"""Writes docs/reference/api.md from what programs import: ``python -m docs.pages.api``.

Signatures and meanings are those in the source. Each name is shown once, under the module that users import it from. A public
class or function without a docstring is an error.
"""

import argparse
import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from docs.pages.links import linked

MODULES = {
    "asyncrl": "Runs and evaluations, from a program or a notebook ([how](../start/python.md)).",
    "asyncrl.envs": "What an environment is made of ([how](../how-to/environments.md)).",
    "asyncrl.core.task": "Tasks.",
    "asyncrl.core.messages": "Messages and calls.",
    "asyncrl.envs.rewards": "Ready-made rewards ([how](../how-to/rewards.md)).",
    "asyncrl.envs.lessons": "Lessons ([how](built-in-environments.md#lessons-for-an-environment-of-your-own)).",
    "asyncrl.learners.custom.inputs": "What functions of your own get ([how](../how-to/own-algorithms.md)).",
    "asyncrl.replay.hook": "What a hook of `asyncrl replay` sees ([how](../how-to/replay.md#a-hook)).",
}
"""Modules that users import from, and what each is for."""

_HEAD = """\
# Python API

<!-- Generated from the source by `python -m docs.pages.api`; edit the docstrings there. -->

What programs, notebooks and environments import, with signatures. Everything else is internal and may change.
"""


def api_page() -> str:
    """The page as Markdown.

    Raises:
        ValueError: a public name has no docstring.
    """
    return "\n".join([_HEAD, *(line for module, what in MODULES.items() for line in _module(module, what))])


def _module(name: str, what: str) -> Iterator[str]:
    yield f"## `{name}`\n"
    yield f"{what}\n"
    module = import_module(name)
    names = getattr(module, "__all__", None) or [each for each, value in vars(module).items() if _is_own(each, value, name)]
    for each in names:
        value = getattr(module, each)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield from _shown(each, value)


def _is_own(name: str, value: object, module: str) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", "") == module and value.__doc__ is not None


def _shown(name: str, value: type | object) -> Iterator[str]:
    """Yield the lines of a class or function: heading, signature, docstring, and a class's public members."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body  # type: ignore[arg-type]
    yield f"### `{name}`\n"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield f"```text\n{_signature(node)}\n```\n"
        yield from _docstring(_documented(node, name))
        return
    assert isinstance(node, ast.ClassDef)
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_")]
    members = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    made = [each for each in members if each.name == "__init__"]
    for each in made:
        yield f"```text\n{_signature(each, name)}\n```\n"
    if fields and not made:
        yield "\n".join(["```text", f"class {name}", *(f"    {_field(each)}" for each in fields), "```\n"])
    yield from _docstring(_documented(node, name))
    public = [each for each in members if not each.name.startswith("_") and ast.get_docstring(each)]
    if public:
        yield "| member | what it is |"
        yield "|---|---|"
        for each in public:
            yield f"| {_member(each)} | {_summary(ast.get_docstring(each) or '')} |"
        yield ""


def _documented(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str) -> str:
    text = ast.get_docstring(node)
    if text is None:
        raise ValueError(f"{name} has no docstring, and is shown to users")
    return text


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str = "") -> str:
    """The signature as one line; of a constructor, with the class's ``name``."""
    taken = node.args
    if taken.args and taken.args[0].arg in ("self", "cls"):
        taken = ast.arguments(**{**{key: getattr(taken, key) for key in taken._fields}, "args": taken.args[1:]})
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and not name else ""
    before = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{before}{name or node.name}({ast.unparse(taken)}){returns}"


def _field(node: ast.AnnAssign) -> str:
    return ast.unparse(node)


def _member(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    marks = {ast.unparse(each) for each in node.decorator_list}
    shown = node.name if marks & {"property", "cached_property"} else _signature(node)
    return f"`{shown}`".replace("|", "\\|")


def _summary(text: str) -> str:
    return _inline(" ".join(re.split(r"\n\s*\n|\n\s*(?:Args|Raises):", text)[0].split())).replace("|", "\\|")


def _docstring(text: str) -> Iterator[str]:
    """Yield a docstring in Google's style as Markdown: prose, and a list for each of its sections."""
    for part in re.split(r"\n\s*\n", text):
        title, _, entries = part.partition("\n")
        if title in ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:"):
            yield f"{title}\n"
            for entry in re.split(r"\n    (?=\S)", f"\n{entries}")[1:]:
                name, colon, meaning = " ".join(entry.split()).partition(": ")
                yield f"* `{name}`: {_inline(meaning)}" if colon else f"* {_inline(name)}"
            yield ""
        else:
            yield f"{_inline(' '.join(part.split()))}\n"


def _inline(text: str) -> str:
    """reStructuredText in docstrings as Markdown: roles and double backticks become code."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    return linked(text, "reference")


def main(argv: Sequence[str]) -> None:
    """Write the page to the file named, by default docs/reference/api.md of the checkout."""
    parser = argparse.ArgumentParser(description="Write the page of what programs import.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/reference/api.md"))
    parser.parse_args(argv).file.write_text(api_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
