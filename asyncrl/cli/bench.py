"""``asyncrl bench``: measures the whole loop and its parts."""

from __future__ import annotations

import argparse
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from rich.console import Console

from asyncrl.cli.arguments import command, count, writable_file
from asyncrl.cli.outcome import ExitCode, run_to_end, show_refusal
from asyncrl.core.errors import RecipeError

if TYPE_CHECKING:
    from asyncrl.cli.arguments import Commands, Run

_LOOP = """\
Train the quickstart's model on its task for a fixed number of training steps
and measure the whole loop: trajectories and completion tokens per second, and
the share of time in which each side was idle. With --workload, train models
with random weights on other kinds of tasks, several times. With --peer,
measure another trainer as well, in turn, on the same tasks."""

_BUFFER = """\
Move trajectories from one producer process through the replay buffer to one
consumer process, without and with a journal. Measures the rate, the latency
of a trajectory, and the time and memory that the bookkeeping takes."""

_GENERATORS = """\
Play many episodes of a scripted model on one engine, and compare with the
engine alone on the same prompts and lengths. Also measure how late the event
loop of 512 episodes is, and what a call of a tool costs. Takes 2 minutes."""

_POOL = """\
Simulate hours of a pool of engines around the real replay buffer: durations
with a heavy tail, engines that die, groups that are filtered. Measures
staleness, memory and the CPU time per group."""

_SCALE = """\
Measure the parts of a run that all engines share (the buffer's process, its
journal, Ray's object store, a rank's intake), and simulate runs with many
engines around the real buffer at these costs. Says what limits each of them.
Takes 3 minutes."""

_STALENESS = """\
Compare the values of buffer.on_stale, and admission control alone, in the
same simulation: staleness, the lengths of the trained episodes, and how long
the learner waits."""

_LEARNER = """\
Train a small model with the learner and with a plain PyTorch loop, in turn,
and compare tokens per second. Also compare computing log-probabilities
directly from hidden states with computing them from full logits. Uses one CPU
thread and takes 3 minutes."""

_LEARNING = """\
Train the quickstart with several algorithms, and on stale tokens with several
corrections and with none, each with three seeds, and show which of them reach
the target reward, and when. Takes over an hour. Started again with the same
file, it does the runs that are missing."""

_PLAN = """\
Run ten settings of the workloads, predict each from the run of another setting
of the same workload, and compare: throughput, staleness, idle shares, ranking.
Takes 15 minutes."""

_TUNE = """\
Let simulated runs whose episodes become longer tune themselves from a bad
start, some of them killed in the middle of a move, and compare how fast they
are at the end with the best fixed setting. Takes 10 minutes. With --engines,
do so with one run on one or two engines of this machine. Takes 15 minutes."""

_WEIGHTS = """\
Publish weights of 200 MB and 1 GB from two learner ranks to an engine's
reader through shared memory, beside memcpy and gloo's flat broadcast. Needs 10 GB of memory, of which 4 GB in the memory
file system, and takes 2 minutes."""

_GPU = """\
Measure a GPU in six parts: one learner rank beside the CPU, training steps
beside a plain loop, log-probabilities beside full logits, publications beside
the bus and to a second GPU, and an engine with a short run. Says what is missing instead of
failing, and takes about twenty minutes. On a machine without vLLM and Ray:
python -m asyncrl.bench.gpu"""


def add_command(commands: Commands) -> None:
    """Add the command ``bench``."""
    parser = commands.add_parser("bench", help="run a benchmark", description="Measure asyncrl on this machine.")
    kinds = parser.add_subparsers(title="benchmarks", required=True, metavar="BENCHMARK")
    loop = _add(kinds, "loop", "throughput of the whole loop", _LOOP, run_loop)
    loop.add_argument("--workload", metavar="NAME", help="short, tools, turns, slow or all")
    loop.add_argument("--model", metavar="SIZE", help="with --workload: 1m, 6m or all (default all)")
    loop.add_argument("--peer", metavar="NAME", help="with --workload: measure `trl` as well; first run `make bench-peers`")
    loop.add_argument("--repetitions", metavar="N", type=count, help="with --workload: runs of each side (default 3)")
    loop.add_argument("--steps", metavar="N", type=count, help="with --workload: training steps that are measured")
    loop.add_argument("--override", metavar="KEY=VALUE", action="append", default=[], help="change asyncrl's recipe")
    buffer = _add(kinds, "buffer", "the replay buffer as a service", _BUFFER, run_buffer)
    buffer.add_argument("--tokens", metavar="N", type=count, default=2048, help="tokens of a trajectory (default 2048)")
    _add(kinds, "generators", "episodes beside the bare engine", _GENERATORS, partial(run_part, "generators.generators"))
    pool = _add(kinds, "pool", "a simulated pool of engines", _POOL, run_pool)
    pool.add_argument("--engines", metavar="N", type=count, default=1024, help="engines in the pool (default 1024)")
    pool.add_argument("--hours", metavar="N", type=count, default=24, help="hours of simulated time (default 24)")
    scale = _add(kinds, "scale", "what limits a run with many engines", _SCALE, run_scale)
    scale.add_argument("--engines", metavar="N", type=count, nargs="+", help="numbers of engines (default 16 256 4096)")
    _add(kinds, "staleness", "effect of each value of buffer.on_stale", _STALENESS, partial(run_part, "staleness"))
    _add(kinds, "learner", "the learner beside a plain PyTorch loop", _LEARNER, partial(run_part, "learner.learner"))
    _add(kinds, "plan", "predictions beside runs", _PLAN, partial(run_part, "plan"))
    tune = _add(kinds, "tune", "runs that tune themselves", _TUNE, run_tune)
    tune.add_argument("--engines", action="store_true", help="a run on engines instead of simulated ones")
    _add(kinds, "weights", "publications, by each transport", _WEIGHTS, partial(run_part, "weights.weights"))
    gpu = _add(kinds, "gpu", "a GPU, in six parts", _GPU, run_gpu)
    gpu.add_argument("--small", action="store_true", help="tiny shapes, which run on a CPU too: this measures nothing")
    _add(kinds, "learning", "whether the quickstart learns", _LEARNING, run_learning)


def _add(kinds: Commands, name: str, summary: str, description: str, run: Run) -> argparse.ArgumentParser:
    parser = command(kinds, name, summary, description, run)
    parser.add_argument("--json", metavar="FILE", type=writable_file, required=True, help="where to write the result")
    return parser


def run_part(module: str, arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Run the benchmark in a module, and show its table."""
    benchmark = import_module(f"asyncrl.bench.{module}")
    console.print(benchmark.view(benchmark.run(arguments.json, console)))
    return ExitCode.COMPLETED


def run_tune(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Measure runs that tune themselves, simulated or on engines."""
    return run_part("tuned_engines" if arguments.engines else "tune", arguments, console)


def run_loop(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Measure the whole loop, or workloads if ``--workload`` is given."""
    from asyncrl.bench.loop import loop
    from asyncrl.run.folder.run_folder import RunFolder

    if arguments.workload is not None:
        return _run_workloads(arguments, console)
    try:
        for option in ("model", "peer", "repetitions", "steps"):
            if getattr(arguments, option) is not None:
                raise RecipeError(f"--{option}", "this option needs a workload to measure", "add --workload NAME")
        recipe = loop.recipe(arguments.override)
        folder = RunFolder.create(recipe)
    except RecipeError as error:
        return show_refusal(error)
    return run_to_end(partial(loop.run, json_file=arguments.json), recipe, folder, console)


def _run_workloads(arguments: argparse.Namespace, console: Console) -> ExitCode:
    from asyncrl.bench.loop import workload_runs

    try:
        plan = workload_runs.plan(
            arguments.workload,
            arguments.model or workload_runs.ALL,
            arguments.peer,
            arguments.repetitions or workload_runs.REPETITIONS,
            arguments.override,
            arguments.steps,
        )
        results = workload_runs.run(plan, arguments.json, console)
    except RecipeError as error:
        return show_refusal(error)
    console.print(workload_runs.view(results))
    return ExitCode.COMPLETED


def run_buffer(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Measure the replay buffer."""
    from asyncrl.bench.buffer import buffer

    result = buffer.run(arguments.json, console, buffer.BenchSettings(tokens=arguments.tokens))
    console.print(buffer.view(result))
    return ExitCode.COMPLETED


def run_pool(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Simulate a pool of engines."""
    from asyncrl.bench import pool

    console.print(pool.view(pool.run(arguments.engines, arguments.hours, arguments.json, console)))
    return ExitCode.COMPLETED


def run_scale(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Say what limits a run with many engines."""
    from asyncrl.bench import scale

    console.print(scale.view(scale.run(arguments.json, console, arguments.engines or scale.ENGINES)))
    return ExitCode.COMPLETED


def run_gpu(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Measure one GPU."""
    from asyncrl.bench.gpu.run import run
    from asyncrl.bench.gpu.settings import GpuBenchSettings

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    result = run(arguments.json, say, GpuBenchSettings.small() if arguments.small else None)
    return ExitCode.FAILED if result.failures else ExitCode.COMPLETED


def run_learning(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Train the quickstart with several algorithms."""
    from asyncrl.bench import learning

    result = learning.run(arguments.json, console)
    console.print(learning.markdown(result), markup=False, highlight=False, soft_wrap=True)
    return ExitCode.FAILED if any(run.failure for run in result.runs) else ExitCode.COMPLETED
