"""Completion of the command in shells: ``eval "$(asyncrl --print-completion bash)"``, zsh, or fish's ``| source``.

What always holds: the script is made from the parser itself, by shtab or, for fish, here, so it knows every command and option.
Shipped recipes and the keys of recipes are in the script; runs and files are looked for by the shell when a word is completed, so
that no Python is started then. A script is kept until a file changes that it is made from: shells ask for it when they start.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

SHELLS = ("bash", "zsh", "fish")
PACKAGE = Path(__file__).parents[1]
_MADE_FROM = ("cli", "core/recipe", "recipes")
"""Folders of the package that scripts follow from."""

_BASH = """
_asyncrl_recipe() {{
  compgen -W "{recipes}" -- "$1"
  compgen -d -S / -- "$1"
  compgen -f -X '!*.yaml' -- "$1"
}}
_asyncrl_key() {{
  compgen -W "{keys}" -- "$1"
}}
_asyncrl_run() {{
  local each
  for each in "$1"*/recipe.yaml "$1"*/*/recipe.yaml runs/"$1"*/recipe.yaml; do
    [[ -f $each ]] && echo "${{each%/recipe.yaml}}"
  done
  compgen -d -- "$1"
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
_asyncrl_run() {{
  local -a runs=(*/recipe.yaml(N:h) */*/recipe.yaml(N:h))
  _alternative 'runs:run:($runs)' 'folders:folder:_files -/'
}}
"""
_FISH = """\
function __asyncrl_at
    set -l words (commandline -opc)
    set -l plain
    for word in $words[2..]
        string match -q -- '-*' $word; or set -a plain $word
    end
    for index in (seq (count $argv))
        test "$plain[$index]" = "$argv[$index]"; or return 1
    end
end
function __asyncrl_commands
    __asyncrl_at $argv; or return 1
    set -l plain (string match -v -- '-*' (commandline -opc))
    test (count $plain) -eq (math (count $argv) + 1)
end
function __asyncrl_runs
    for each in */recipe.yaml */*/recipe.yaml
        string replace -r '/recipe.yaml$' '' $each
    end
    __fish_complete_directories
end
function __asyncrl_recipes
    printf '%s\\n' {recipes}
    __fish_complete_suffix .yaml
end
function __asyncrl_keys
    printf '%s\\n' {keys}
end
complete -c asyncrl -f
"""


class PrintCompletion(argparse.Action):
    """The option that prints the script for a shell and ends the command.

    Args:
        whole: makes the parser of the whole command line, where a script has to be made.
    """

    def __init__(self, *arguments: Any, whole: Callable[[], argparse.ArgumentParser], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._whole = whole

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> NoReturn:
        """Print the script."""
        kept = _kept(values)
        try:
            script = kept.read_text(encoding="utf-8")
        except OSError:
            script = _script(self._whole(), values)
            _keep(script, kept)
        sys.stdout.write(script)
        parser.exit()


def _kept(shell: str) -> Path:
    """The file of the script that is made from what there is now."""
    from asyncrl.core.files.cache_folder import cache_folder

    digest, waiting = hashlib.sha256(), [str(PACKAGE / folder) for folder in _MADE_FROM]
    while waiting:
        for each in sorted(os.scandir(waiting.pop()), key=lambda each: each.name):
            if each.is_dir():
                waiting.append(each.path)
            elif each.name.endswith((".py", ".yaml")):
                digest.update(f"{each.path} {each.stat().st_mtime_ns}\n".encode())
    return cache_folder() / "completion" / f"{shell}-{digest.hexdigest()[:16]}"


def _keep(script: str, kept: Path) -> None:
    from asyncrl.core.files.whole_file import write_whole

    with suppress(OSError):  # the next shell has it made anew then
        kept.parent.mkdir(parents=True, exist_ok=True)
        for earlier in kept.parent.glob(f"{kept.name.partition('-')[0]}-*"):
            earlier.unlink()
        write_whole(kept, script.encode())


def _script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Make the script of the whole command line for a shell."""
    import shtab

    for action in _actions(parser):
        if action.dest == "recipe" or action.metavar == "ENVIRONMENT":
            action.complete = dict.fromkeys(SHELLS, "_asyncrl_recipe")  # type: ignore[attr-defined]
        elif action.dest in ("overrides", "override"):
            action.complete = dict.fromkeys(SHELLS, "_asyncrl_key")  # type: ignore[attr-defined]
        elif action.metavar == "RUN":
            action.complete = dict.fromkeys(SHELLS, "_asyncrl_run")  # type: ignore[attr-defined]
        elif action.metavar == "FOLDER":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    words = {"recipes": " ".join(_shipped_recipes()), "keys": " ".join(f"{key}=" for key in _keys())}
    if shell == "fish":
        return _FISH.format(**words) + "".join(f"{line}\n" for line in _fish_lines(parser, ()))
    script: str = shtab.complete(parser, shell, preamble=(_BASH if shell == "bash" else _ZSH).format(**words))
    return script + (_NO_SPACE_AFTER_A_KEY if shell == "bash" else "\n")


def _fish_lines(parser: argparse.ArgumentParser, place: Sequence[str]) -> Iterator[str]:
    """Yield what tells fish of the arguments of a command, at its place such as ``env check``, and of the commands below it."""
    at = f"complete -c asyncrl -n '__asyncrl_at {' '.join(place)}'"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                offered = f"complete -c asyncrl -n '__asyncrl_commands {' '.join(place)}' -a {name}"
                yield f"{offered} -d {_quoted((command.description or '').partition('.')[0])}"
                yield from _fish_lines(command, (*place, name))
        elif action.help != argparse.SUPPRESS:
            options = "".join(f" -l {each[2:]}" if each.startswith("--") else f" -s {each[1:]}" for each in action.option_strings)
            words = _fish_words(action)
            takes = " -r" if action.option_strings and action.nargs != 0 else ""
            if options or words:
                yield f"{at}{options}{takes}{words}" + (f" -d {_quoted(action.help or '')}" if options else "")


def _fish_words(action: argparse.Action) -> str:
    """Return what fish completes an argument with."""
    known = {"_asyncrl_recipe": "__asyncrl_recipes", "_asyncrl_key": "__asyncrl_keys", "_asyncrl_run": "__asyncrl_runs"}
    if action.choices is not None:
        return f" -a {_quoted(' '.join(map(str, action.choices)))}"
    function = getattr(action, "complete", {}).get("fish", "")
    if function in known:
        return f" -a '({known[function]})'"
    if action.metavar == "FOLDER":
        return " -a '(__fish_complete_directories)'"
    return " -F" if action.metavar == "FILE" else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ") + "'"


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
