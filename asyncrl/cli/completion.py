"""Completion of the command in shells: ``eval "$(asyncrl --print-completion bash)"``, or zsh.

What always holds: shtab makes the script from the parser itself, so it knows every command and option. Shipped recipes and the
keys of recipes are in the script; files are looked for when a word is completed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

SHELLS = ("bash", "zsh")

_BASH = """
_asyncrl_recipe() {{
  compgen -W "{recipes}" -- "$1"
  compgen -d -S / -- "$1"
  compgen -f -X '!*.yaml' -- "$1"
}}
_asyncrl_key() {{
  compgen -W "{keys}" -- "$1"
}}
"""
_NO_SPACE_AFTER_A_KEY = """
_asyncrl() {
  _shtab_asyncrl "$@"
  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o bashdefault -F _asyncrl asyncrl
"""
_ZSH = """
_asyncrl_recipe() {{
  _alternative 'recipes:shipped recipe:({recipes})' 'files:recipe:_files -g "*.yaml"'
}}
_asyncrl_key() {{
  compadd -S '' -- {keys}
}}
"""


class PrintCompletion(argparse.Action):
    """The option that prints the script for a shell and ends the command."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> NoReturn:
        """Print the script."""
        import shtab

        for action in _actions(parser):
            if action.dest == "recipe" or action.metavar == "ENVIRONMENT":
                action.complete = dict.fromkeys(SHELLS, "_asyncrl_recipe")  # type: ignore[attr-defined]
            elif action.dest in ("overrides", "override"):
                action.complete = dict.fromkeys(SHELLS, "_asyncrl_key")  # type: ignore[attr-defined]
            elif action.metavar in ("RUN", "FOLDER"):
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.metavar == "FILE":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        words = {"recipes": " ".join(_shipped_recipes()), "keys": " ".join(f"{key}=" for key in _keys())}
        script = shtab.complete(parser, values, preamble=(_BASH if values == "bash" else _ZSH).format(**words))
        sys.stdout.write(script + (_NO_SPACE_AFTER_A_KEY if values == "bash" else "\n"))
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of the parser and of all its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


def _shipped_recipes() -> Sequence[str]:
    from asyncrl.run.recipe.compose import shipped_recipes

    return shipped_recipes()


def _keys() -> Iterator[str]:
    """Yield the keys of recipes whose sections are always the same, in the order of the schema."""
    from msgspec import inspect

    from asyncrl.core.recipe.schema import Recipe

    def keys_of(section: inspect.StructType, place: str) -> Iterator[str]:
        for field in section.fields:
            kinds = [kind for kind in _kinds(field.type) if isinstance(kind, inspect.StructType)]
            if len(kinds) == 1 and kinds[0].tag is None:
                yield from keys_of(kinds[0], f"{place}{field.encode_name}.")
            else:
                yield f"{place}{field.encode_name}"

    def _kinds(type_: inspect.Type) -> Sequence[inspect.Type]:
        return type_.types if isinstance(type_, inspect.UnionType) else (type_,)

    recipe = inspect.type_info(Recipe)
    assert isinstance(recipe, inspect.StructType)
    yield from keys_of(recipe, "")
