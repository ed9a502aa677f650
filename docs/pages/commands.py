"""Writes docs/reference/cli.md from the parser of the command line: ``python -m docs.pages.commands``.

Commands, arguments, defaults and examples are those that ``asyncrl COMMAND -h`` shows.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from asyncrl.cli.main import command_line
from docs.pages.links import linked

_HEAD = """\
# Command line

<!-- Generated from the parser by `python -m docs.pages.commands`; edit the commands in asyncrl/cli. -->

Every command, its arguments and what they do; `asyncrl COMMAND -h` shows the same.
`eval "$(asyncrl --print-completion bash)"` lets your shell complete commands, recipes and keys. {exit_codes}
"""


def commands_page() -> str:
    """The page as Markdown."""
    parser = command_line()
    assert parser.epilog is not None
    return "\n".join([_HEAD.format(exit_codes=parser.epilog), *_commands(parser, "asyncrl")])


def _commands(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for name, command in action.choices.items():
            yield from _command(command, f"{path} {name}")
            yield from _commands(command, f"{path} {name}")


def _command(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
    """Yield the lines of one command: heading, description, arguments, examples."""
    arguments = [each for each in parser._actions if _is_shown(each)]
    yield f"{'#' * (path.count(' ') + 1)} `{path}`\n"
    yield f"{_prose(parser.description or '')}\n"
    if arguments:
        usage = parser.usage or " ".join([path, *map(_usage, arguments)])
        yield f"```text\n{' '.join(usage.split()).replace('%(prog)s', path)}\n```\n"
        yield "| argument | meaning |"
        yield "|---|---|"
        for each in arguments:
            yield f"| {_name(each)} | {_meaning(each)} |"
        yield ""
    if parser.epilog:
        yield from _examples(parser.epilog)


def _is_shown(argument: argparse.Action) -> bool:
    return argument.help != argparse.SUPPRESS and not isinstance(argument, argparse._HelpAction | argparse._SubParsersAction)


def _usage(argument: argparse.Action) -> str:
    """The argument as it is written on the command line, in brackets if it may be left out."""
    value = _value(argument)
    written = f"{argument.option_strings[0]} {value}".strip() if argument.option_strings else value
    return f"[{written}]" if not argument.required and not written.startswith("[") else written


def _name(argument: argparse.Action) -> str:
    value = _value(argument)
    names = argument.option_strings or [value]
    return ", ".join(f"`{f'{name} {value}'.strip() if argument.option_strings else name}`" for name in names).replace("|", "\\|")


def _value(argument: argparse.Action) -> str:
    """The placeholder of the argument's value; empty for an option without one."""
    if argument.nargs == 0:
        return ""
    if isinstance(argument.metavar, tuple):
        return " ".join(argument.metavar)
    default = argument.dest.upper() if argument.option_strings else argument.dest
    name = argument.metavar or (f"{{{','.join(map(str, argument.choices))}}}" if argument.choices else default)
    match argument.nargs:
        case "*":
            return f"[{name} ...]"
        case "+":
            return f"{name} [{name} ...]"
        case "?" if argument.option_strings:
            return f"[{name}]"
        case _:
            return name


def _meaning(argument: argparse.Action) -> str:
    shown = (argument.help or "") % vars(argument) if "%" in (argument.help or "") else argument.help or ""
    return " ".join(shown.split()).replace("|", "\\|")


def _examples(epilog: str) -> Iterator[str]:
    """Yield the lines of an epilog: its examples as a block of commands, everything else as prose."""
    for paragraph in re.split(r"\n\s*\n", epilog.strip()):
        lines = paragraph.splitlines()
        shown = [line for line in lines if line.startswith("  ")]
        if shown and len(shown) >= len(lines) - 1:
            head = [line for line in lines if not line.startswith("  ")]
            if head and head != ["examples:"]:
                yield f"{' '.join(head)}\n"
            yield "\n".join(["```text", *(line[2:] for line in shown), "```\n"])
        else:
            yield f"{_prose(paragraph)}\n"


def _prose(text: str) -> str:
    """Text that was wrapped for a terminal; a part that is indented stays as it is."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = paragraph.splitlines()
        whole = [line for line in lines if not line.startswith(" ")]
        parts.append(linked(" ".join(lines), "reference") if len(whole) == len(lines) else "\n".join(["```text", *lines, "```"]))
    return "\n\n".join(parts)


def main(argv: Sequence[str]) -> None:
    """Write the page to the file named, by default docs/reference/cli.md of the checkout."""
    parser = argparse.ArgumentParser(description="Write the page of the command line.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/reference/cli.md"))
    parser.parse_args(argv).file.write_text(commands_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
