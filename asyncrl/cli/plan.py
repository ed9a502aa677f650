"""``asyncrl plan``: predicts how fast a recipe would run, and how stale its data would be, before it is launched."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, count, run_to_read, writable_file
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode
from asyncrl.cli.written_file import write_file, write_json
from asyncrl.core.errors import RecipeError

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands

_DESCRIPTION = """\
Predict a recipe: throughput, who waits, staleness, memory and the bottleneck.
The production buffer, pacing, packing and delivery run in simulated time, with
rates and episodes of a run, of a probe of this machine, or of a file. Nothing
is launched, but for the short run of --probe."""

_EXAMPLES = """\
examples:
  asyncrl plan quickstart --from runs/NAME-TIME          rates of a run of any size
  asyncrl plan quickstart --probe                        a run of a minute or two first
  asyncrl plan my.yaml --rates h100 --gpus 64            which split of a budget
  asyncrl plan my.yaml --from RUN --vary generators.count=1:4 buffer.max_staleness=0,1,2,4
  asyncrl plan my.yaml --from RUN --json plan.json --html plan.html

docs/how-to/planning.md says what is modelled, and describes files of rates."""


def add_command(commands: Commands) -> None:
    """Add the command ``plan``."""
    parser = command(commands, "plan", "predict a run before it is launched", _DESCRIPTION, run, starts=True, epilog=_EXAMPLES)
    parser.add_argument("recipe", metavar="RECIPE", help="path of a .yaml file, or the name of a shipped recipe")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="set a key, as in `asyncrl launch`")
    parser.add_argument("--from", dest="source", metavar="RUN", type=run_to_read, help="rates and episodes of this run")
    parser.add_argument("--probe", action="store_true", help="rates and episodes of a short run of the recipe on this machine")
    parser.add_argument("--rates", metavar="FILE", help="rates of a file, or of the shipped file of that name")
    parser.add_argument("--vary", metavar="KEY=VALUES", nargs="+", default=[], help="compare values: key=1:8 or key=1,2,4")
    parser.add_argument("--gpus", metavar="N", type=count, help="compare the splits of so many GPUs between learner and engines")
    parser.add_argument("--seeds", metavar="N", type=count, help="modelled runs of each point")
    parser.add_argument("--steps", metavar="N", type=count, help="training steps of each that count")
    parser.add_argument("--json", metavar="FILE", type=writable_file, help="write everything there")
    parser.add_argument("--html", metavar="FILE", type=writable_file, help="write a page with pictures there")
    parser.set_defaults(parser=parser)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Predict, and show it."""
    from asyncrl.planning.page import plan_page
    from asyncrl.planning.plan_request import PlanRequest, answer
    from asyncrl.planning.prediction import SEEDS, STEPS
    from asyncrl.planning.probe import probe
    from asyncrl.planning.rate_sources import basis_from, machine_of
    from asyncrl.planning.rates_file import read_rates
    from asyncrl.planning.view import plan_answer_view

    if arguments.probe and arguments.source is not None:
        arguments.parser.error("--probe makes a run, and --from names one: give one of both")
    if not (arguments.probe or arguments.source or arguments.rates):
        arguments.parser.error("say where rates come from: --from RUN, --probe or --rates FILE")
    probing = partial(probe, source=arguments.recipe, overrides=arguments.overrides, note=say) if arguments.probe else None
    request = PlanRequest(
        recipe=arguments.recipe,
        overrides=tuple(arguments.overrides),
        vary=tuple(arguments.vary),
        gpus=arguments.gpus,
        seeds=arguments.seeds or SEEDS,
        steps=arguments.steps or STEPS,
    )
    file = None if arguments.rates is None else read_rates(arguments.rates)
    machine = machine_of(file, arguments.gpus)
    if arguments.probe and arguments.gpus and not machine.gpus:
        problem = "this machine, which a probe measures, has no GPU that could be used"
        raise RecipeError("--gpus", problem, "add --rates FILE, or compare sizes with --vary")
    found = answer(
        request,
        lambda recipe: basis_from(recipe, run=arguments.source, file=file, name=arguments.rates, probe=probing),
        machine,
        say,
    )
    console.print(plan_answer_view(found))  # first: a disk that takes no file loses nothing
    if arguments.json is not None:
        write_json(arguments.json, found)
    if arguments.html is not None:
        write_file(arguments.html, plan_page(found).encode())
        console.print(Text.assemble(("Page: ", "dim"), str(arguments.html)), soft_wrap=True)
    return ExitCode.COMPLETED
