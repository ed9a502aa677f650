"""The ``asyncrl`` command. One file a subcommand; nothing heavy is imported before the arguments and the recipe are right."""

import argparse
import os
import resource
import sys
from collections.abc import Sequence
from typing import NoReturn

import asyncrl
from asyncrl.cli import bench, buffer, launch
from asyncrl.cli.console import PatientConsole, not_shown, show_what_can_be_shown
from asyncrl.cli.outcome import ExitCode, show_system_failure
from asyncrl.run.stopping import interrupting

_DESCRIPTION = "Reinforcement learning of language models that act over many turns and call tools, asynchronously."
_EXIT_CODES = "Exit codes: 0 completed, 1 failed, 2 bad recipe or usage, 130 interrupted (Ctrl-C or SIGTERM)."

LEAST_ADDRESS_SPACE = 1 << 30
"""Bytes of address space without which no command is tried."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. A usage error exits by itself, with code 2."""
    parser = argparse.ArgumentParser("asyncrl", description=_DESCRIPTION, epilog=_EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"asyncrl {asyncrl.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    launch.add_command(commands)
    bench.add_command(commands)
    buffer.add_command(commands)
    arguments, left = parser.parse_known_args(argv)
    # argparse takes only the first unbroken row of positionals: those behind a flag are left over.
    if any(word.startswith("-") for word in left) or (left and "overrides" not in arguments):
        parser.error(f"unknown arguments: {' '.join(left)}")
    if left:
        arguments.overrides.extend(left)
    console = PatientConsole()
    try:
        _check_address_space()
        code: ExitCode = arguments.run(arguments, console)
    except KeyboardInterrupt:  # before there is a run that could end in an orderly way
        return ExitCode.INTERRUPTED
    except (OSError, ImportError, MemoryError) as error:
        return show_system_failure(error)
    if code is ExitCode.COMPLETED and console.failure is not None:
        return show_system_failure(console.failure)
    return code


def _check_address_space() -> None:
    """Raise ``MemoryError`` where numpy's BLAS would ask for memory forever while it is imported."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY and allowed < LEAST_ADDRESS_SPACE:
        raise MemoryError(
            f"({allowed >> 20} MiB of address space are allowed, at least {LEAST_ADDRESS_SPACE >> 20} MiB are needed)"
        )


def run() -> NoReturn:
    """Run the installed command, and exit at once: everything has ended by then, and Python would take seconds to clean up."""
    show_what_can_be_shown()
    with interrupting():
        try:
            code = main()
        except SystemExit as end:  # argparse has shown why
            code = int(end.code or 0)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # closed by who called us
                stream.flush()
        except BrokenPipeError:
            pass  # the reader has gone
        except OSError as error:
            code = code or show_system_failure(not_shown(error))
    os._exit(code)


if __name__ == "__main__":
    run()
