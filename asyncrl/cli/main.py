"""The ``asyncrl`` command. Each subcommand has its own file; heavy imports wait until arguments and recipe are checked."""

import argparse
import os
import resource
import sys
from collections.abc import Sequence
from typing import NoReturn

import asyncrl
from asyncrl.cli import (
    bench,
    buffer,
    doctor,
    evaluate,
    export,
    launch,
    logs,
    plan,
    replay,
    report,
    scale,
    show,
    tiny,
    train_offline,
)
from asyncrl.cli.authors import agent, env
from asyncrl.cli.completion import SHELLS, PrintCompletion
from asyncrl.cli.console import PatientConsole, not_shown, show_what_can_be_shown
from asyncrl.cli.outcome import ExitCode, show_error, show_system_failure
from asyncrl.core.errors import AsyncRLError
from asyncrl.run.host.signals import interrupting

_DESCRIPTION = "Asynchronous reinforcement learning of language models that act over many turns and call tools."
_EXIT_CODES = "Exit codes: 0 completed, 1 failed, 2 bad recipe or usage, 130 interrupted (Ctrl-C or SIGTERM)."

LEAST_ADDRESS_SPACE = 1 << 30
"""Bytes of address space that every command needs at least."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Raises:
        SystemExit: the usage is wrong (code 2), or help or the version was asked for (code 0).
    """
    parser = argparse.ArgumentParser("asyncrl", description=_DESCRIPTION, epilog=_EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"asyncrl {asyncrl.__version__}")
    parser.add_argument(
        "--print-completion", choices=SHELLS, action=PrintCompletion, help="print what a shell evaluates to complete this command"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    launch.add_command(commands)
    plan.add_command(commands)
    evaluate.add_command(commands)
    export.add_command(commands)
    tiny.add_command(commands)
    env.add_command(commands)
    agent.add_command(commands)
    bench.add_command(commands)
    doctor.add_command(commands)
    buffer.add_command(commands)
    logs.add_command(commands)
    show.add_command(commands)
    report.add_command(commands)
    replay.add_command(commands)
    train_offline.add_command(commands)
    scale.add_command(commands)
    arguments, left = parser.parse_known_args(argv)
    # argparse takes only the first unbroken series of positional arguments; those after an option are left over.
    if any(word.startswith("-") for word in left) or (left and "overrides" not in arguments):
        parser.error(f"unknown arguments: {' '.join(left)}")
    if left:
        arguments.overrides.extend(left)
    console = PatientConsole()
    try:
        _check_address_space()
        code: ExitCode = arguments.run(arguments, console)
    except KeyboardInterrupt:  # before there is a run, which would end in an orderly way
        return ExitCode.INTERRUPTED
    except AsyncRLError as error:
        return show_error(error)
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
    with interrupting():
        try:
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
            code = code or show_system_failure(not_shown(error))
    os._exit(code)


if __name__ == "__main__":
    run()
