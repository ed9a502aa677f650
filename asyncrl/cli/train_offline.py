"""``asyncrl train-offline``: trains from the trajectories that runs have recorded, and evaluates what came of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, count
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode, logging_to, show_refusal
from asyncrl.cli.replay import steps_of
from asyncrl.core.errors import RecipeError

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.core.ids import PolicyVersion
    from asyncrl.run.folder.run_folder import RunFolder

_DESCRIPTION = """\
Train a recipe from the trajectories that other runs have recorded, without
generating any: with any algorithm, and the log-probabilities with which they
were sampled. Afterwards engines play the held-out tasks with the first version
and with every evaluation.every-th. All files are in one folder, runs/NAME-TIME."""

_EXAMPLES = """\
examples:
  asyncrl train-offline quickstart --from runs/NAME-TIME
  asyncrl train-offline quickstart --from runs/ONE runs/OTHER --steps 10:40
  asyncrl train-offline quickstart algorithm.advantage.kind=rloo --from runs/NAME-TIME
  asyncrl train-offline quickstart --from runs/NAME-TIME --top-reward 1 --least-reward 1 \\
    'algorithm.loss={kind: cross_entropy}' \\
    'algorithm.correction={anchor: proximal_recomputed, weight: none}'

A run keeps as many steps as buffer.journal.keep says: see docs/replay.md."""


def add_command(commands: Commands) -> None:
    """Add the command ``train-offline``."""
    summary = "train from recorded trajectories"
    parser = command(commands, "train-offline", summary, _DESCRIPTION, run, epilog=_EXAMPLES)
    parser.add_argument("recipe", metavar="RECIPE", help="path of a .yaml file, or the name of a shipped recipe")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="set a key of the recipe")
    parser.add_argument("--from", dest="runs", metavar="RUN", type=Path, nargs="+", required=True, help="the runs' folders")
    parser.add_argument("--steps", metavar="A[:B]", type=steps_of, help="only what was trained in these steps of the runs")
    parser.add_argument("--top-reward", metavar="N", type=count, help="only the N best episodes of each group")
    parser.add_argument("--least-reward", metavar="R", type=float, help="only episodes with at least this reward")


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Check what is asked, train, and evaluate."""
    from asyncrl.replay.offline import Offline, plan_offline, train_offline
    from asyncrl.replay.recorded_groups import Best
    from asyncrl.run.folder.run_folder import RunFolder
    from asyncrl.run.recipe.compose import compose
    from asyncrl.run.views.live_view import LiveView

    first, last = arguments.steps or (1, None)
    runs = [Path(word) for word in arguments.runs if "=" not in str(word) or Path(word).exists()]
    overrides = [*arguments.overrides, *(str(word) for word in arguments.runs if word not in runs)]
    try:
        recipe = compose(arguments.recipe, overrides)
        best = Best(arguments.top_reward, arguments.least_reward)
        offline = Offline(recipe=recipe, runs=tuple(runs), first=first, last=last, best=best)
        recorded, remarks = plan_offline(offline)
        folder = RunFolder.create(recipe)
    except RecipeError as error:
        return show_refusal(error)
    for remark in remarks:
        console.print(Text(f"Note: {remark}", "yellow"), soft_wrap=True)
    say(f"{len(recorded.groups)} recorded groups; the run's folder is {folder.path}")
    with logging_to(folder.logs / "driver.log"), LiveView(console, recipe.name) as view:
        versions = train_offline(offline, recorded, folder, view)
    return _evaluate(folder, versions, console)


def _evaluate(folder: RunFolder, versions: list[PolicyVersion], console: Console) -> ExitCode:
    from asyncrl.cli.evaluate import evaluate_to_end, prepare
    from asyncrl.run.evaluation.plan import in_directory_of
    from asyncrl.run.evaluation.request import EvaluationRequest

    evaluated = (0, *map(int, versions))
    request = EvaluationRequest(models=(str(folder.path),), recipe=None, overrides=(), samples=None, versions=evaluated)
    with in_directory_of(request) as here:
        return evaluate_to_end(*prepare(here), console)
