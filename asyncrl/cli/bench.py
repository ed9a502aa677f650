"""``asyncrl bench``: measurements of the whole loop and of its parts."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from rich.console import Console

from asyncrl.cli.outcome import ExitCode, run_to_end, show_refusal
from asyncrl.core.errors import RecipeError

_LOOP = """\
Train the quickstart's model on its task for a fixed number of steps and measure the loop as a whole:
trajectories and completion tokens a second, and the share of time in which each side was idle."""

_BUFFER = """\
Move trajectories from one producer process through the replay buffer to one consumer process, without and
with a journal; measure their rate, the latency of handing one in, and what the bookkeeping costs."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make ``bench`` known."""
    parser = commands.add_parser("bench", help="measure", description="Measure asyncrl on this machine.")
    kinds = parser.add_subparsers(title="benchmarks", required=True, metavar="BENCHMARK")
    loop = kinds.add_parser(
        "loop", help="throughput of the whole loop", description=_LOOP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    loop.add_argument("--json", metavar="FILE", type=_writable_file, required=True, help="where to write the result")
    loop.set_defaults(run=run_loop)
    buffer = kinds.add_parser(
        "buffer",
        help="throughput of the replay buffer",
        description=_BUFFER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    buffer.add_argument("--json", metavar="FILE", type=_writable_file, required=True, help="where to write the result")
    buffer.set_defaults(run=run_buffer)


def run_loop(arguments: argparse.Namespace) -> ExitCode:
    """Measure the loop."""
    from asyncrl.run import bench_loop
    from asyncrl.run.folder import RunFolder

    try:
        recipe = bench_loop.recipe()
        folder = RunFolder.create(recipe)
    except RecipeError as error:
        return show_refusal(error)
    return run_to_end(partial(bench_loop.run, json_file=arguments.json), recipe, folder, Console())


def run_buffer(arguments: argparse.Namespace) -> ExitCode:
    """Measure the replay buffer."""
    from asyncrl.run import bench_buffer

    console = Console()
    result = bench_buffer.run(arguments.json, console)
    console.print(bench_buffer.view(result))
    return ExitCode.COMPLETED


def _writable_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} must be a file in a folder that exists")
    return path
