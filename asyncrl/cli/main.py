"""The ``asyncrl`` command. Each subcommand has its own file, which is imported only when the command is given.

So help and completion come at once; further heavy imports wait until arguments and recipe are checked.
"""

import argparse
import os
import resource
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import asyncrl
from asyncrl.cli.completion import SHELLS, PrintCompletion
from asyncrl.cli.streams import show_what_can_be_shown

_DESCRIPTION = "Asynchronous reinforcement learning of language models that act over many turns and call tools."
_EXIT_CODES = "Exit codes: 0 completed, 1 failed, 2 bad recipe or usage, 130 interrupted (Ctrl-C or SIGTERM)."

LEAST_ADDRESS_SPACE = 1 << 30
"""Bytes of address space that every command needs at least."""


_COMMANDS = {
    "launch": ("launch", "run a recipe"),
    "runs": ("known_runs.listing", "list runs"),
    "tag": ("known_runs.listing", "label a run"),
    "attach": ("known_runs.watching", "watch a run"),
    "stop": ("known_runs.watching", "stop a run"),
    "sweep": ("sweeps.sweep", "run and compare settings of a recipe"),
    "chat": ("models.chat_and_serve", "talk to a model, with tools in place"),
    "serve": ("models.chat_and_serve", "serve a model by vLLM's OpenAI server"),
    "plan": ("plan", "predict a run before it is launched"),
    "evaluate": ("evaluate", "score models on held-out tasks"),
    "export": ("export", "write a run's policy version as a Hugging Face folder"),
    "push": ("models.push", "put a run's model on the Hugging Face hub"),
    "tiny": ("tiny", "make a tiny model with a real model's tokenizer"),
    "env": ("authors.env", "begin, check, play, score and serve environments"),
    "agent": ("authors.agent", "check agents before a run, and replay them"),
    "bench": ("bench", "run a benchmark"),
    "doctor": ("doctor", "say what this machine lacks"),
    "buffer": ("buffer", "show a replay buffer"),
    "logs": ("logs", "show a run's logs"),
    "show": ("show", "read kept episodes"),
    "report": ("report", "write a report as HTML"),
    "replay": ("replay", "compute training steps of a run again"),
    "train-offline": ("train_offline", "train from recorded trajectories"),
    "scale": ("scale", "change how many engines a running run has"),
}
"""The module of each command, which has ``add_command``, and the command in a few words."""


def command_line(given: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        given: the command whose arguments it is to know; all commands' if None.
    """
    parser = argparse.ArgumentParser("asyncrl", description=_DESCRIPTION, epilog=_EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"asyncrl {asyncrl.__version__}")
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        action=PrintCompletion,
        whole=command_line,
        help="print what a shell evaluates to complete this command",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (module, summary) in _COMMANDS.items():
        if name in commands.choices:
            continue  # a module may have two commands
        if given is None or module == _COMMANDS.get(given, ("", ""))[0]:
            import_module(f"asyncrl.cli.{module}").add_command(commands)
        else:
            commands.add_parser(name, help=summary)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Raises:
        SystemExit: the usage is wrong (code 2), or help or the version was asked for (code 0).
    """
    words = sys.argv[1:] if argv is None else argv
    parser = command_line(next((word for word in words if not word.startswith("-")), ""))
    arguments, left = parser.parse_known_args(words)
    # argparse takes only the first unbroken series of positional arguments; those after an option are left over.
    if any(word.startswith("-") for word in left) or (left and "overrides" not in arguments):
        parser.error(f"unknown arguments: {' '.join(left)}")
    if left:
        arguments.overrides.extend(left)
    return _perform(arguments)


def _perform(arguments: argparse.Namespace) -> int:
    from asyncrl.cli.arguments import fetch_runs
    from asyncrl.cli.console import PatientConsole
    from asyncrl.cli.outcome import ExitCode, show_error, show_refusal, show_system_failure
    from asyncrl.core.errors import AsyncRLError, RecipeError

    console = PatientConsole()
    try:
        _check_address_space()
        fetch_runs(arguments)
        code: ExitCode = arguments.run(arguments, console)
    except KeyboardInterrupt:  # before there is a run, which would end in an orderly way
        return ExitCode.INTERRUPTED
    except AsyncRLError as error:
        return show_refusal(error) if arguments.starts and isinstance(error, RecipeError) else show_error(error)
    except (OSError, ImportError, MemoryError) as error:
        return show_system_failure(error)
    if code is ExitCode.COMPLETED and console.failure is not None:
        return show_system_failure(console.failure)
    return code


def _check_address_space() -> None:
    """Raise ``MemoryError`` if address space is so limited that numpy's BLAS would ask for memory forever during its import."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY and allowed < LEAST_ADDRESS_SPACE:
        raise MemoryError(
            f"({allowed >> 20} MiB of address space are allowed, at least {LEAST_ADDRESS_SPACE >> 20} MiB are needed)"
        )


def run() -> NoReturn:
    """Run the command, then exit without Python's own clean-up, which would take seconds. Everything has ended by then."""
    show_what_can_be_shown()
    code = 0
    try:
        if any(not word.startswith("-") for word in sys.argv[1:]):
            from asyncrl.run.host.signals import interrupting

            with interrupting():
                code = main()
        else:  # help, the version or a wrong usage, which nothing need be imported for
            code = main()
    except SystemExit as end:  # argparse has written why
        code = int(end.code or 0)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # None if the caller closed it
                stream.flush()
        except BrokenPipeError:
            pass  # the reader has gone away
        except OSError as error:
            code = code or _not_shown(error)
    os._exit(code)


def _not_shown(error: OSError) -> int:
    from asyncrl.cli.console import not_shown
    from asyncrl.cli.outcome import show_system_failure

    return show_system_failure(not_shown(error))


if __name__ == "__main__":
    run()
