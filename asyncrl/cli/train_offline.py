"""``asyncrl train-offline``: trains from the trajectories that runs have recorded, and evaluates what came of it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, count, run_here
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode, logging_to, show_refusal
from asyncrl.cli.replay import steps_of
from asyncrl.core.errors import RecipeError

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.core.ids import PolicyVersion
    from asyncrl.replay.offline import Offline
    from asyncrl.replay.offline_request import OfflineRequest
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

  asyncrl train-offline quickstart --from conversations.jsonl \\
    'algorithm.loss={kind: cross_entropy}' \\
    'algorithm.correction={anchor: proximal_recomputed, weight: none}'

A run keeps as many steps as buffer.journal.keep says: see docs/how-to/replay.md."""


def add_command(commands: Commands) -> None:
    """Add the command ``train-offline``."""
    summary = "train from recorded trajectories"
    parser = command(commands, "train-offline", summary, _DESCRIPTION, run, epilog=_EXAMPLES)
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="path of a .yaml file, or the name of a shipped recipe")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="set a key of the recipe")
    parser.add_argument(
        "--from",
        dest="runs",
        metavar="RUN",
        type=_run_or_change,
        nargs="+",
        default=[],
        help="folders of runs, and files of episodes: kept trajectories (.parquet) or conversations (.jsonl, .parquet)",
    )
    parser.add_argument("--resume", metavar="RUN", type=run_here, help="go on with a run that this command began")
    parser.add_argument("--steps", metavar="A[:B]", type=steps_of, help="only what was trained in these steps of the runs")
    parser.add_argument("--top-reward", metavar="N", type=count, help="only the N best episodes of each group")
    parser.add_argument("--least-reward", metavar="R", type=float, help="only episodes with at least this reward")


def _run_or_change(text: str) -> Path | str:
    """What follows ``--from``: a run, or a change of the recipe, which stays as it was written."""
    return text if "=" in text and not os.path.exists(text) else run_here(text)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Check what is asked, train, and evaluate."""
    from asyncrl.replay.offline import plan_offline, train_offline
    from asyncrl.replay.offline_request import OfflineRequest, proof_of
    from asyncrl.run.folder.run_folder import RunFolder
    from asyncrl.run.views.live_view import LiveView

    with TemporaryDirectory(prefix="asyncrl-episodes-") as made:
        try:
            offline, folder, before = _asked(arguments)
            with LiveView(console, offline.recipe.name) as view:
                recorded, remarks = plan_offline(offline, Path(made), view)
            if before is not None:
                before.check_same(recorded)
            if folder is None:
                folder = RunFolder.create(offline.recipe)
                runs, best = tuple(str(path.resolve()) for path in offline.runs), offline.best
                OfflineRequest(
                    runs=runs,
                    first=offline.first,
                    last=offline.last,
                    count=best.count,
                    least=best.least,
                    episodes=proof_of(recorded),
                ).keep(folder)
        except RecipeError as error:
            return show_refusal(error)
        for remark in remarks:
            console.print(Text(f"Note: {remark}", "yellow"), soft_wrap=True)
        say(f"{len(recorded.groups)} recorded groups; the run's folder is {folder.path}")
        with logging_to(folder.logs / "driver.log"), LiveView(console, offline.recipe.name) as view:
            versions = train_offline(offline, recorded, folder, view)
    return _evaluate(folder, versions, console)


def _asked(arguments: argparse.Namespace) -> tuple[Offline, RunFolder | None, OfflineRequest | None]:
    """Return what is to be trained; of a run that is resumed, its folder and what it was begun with, too.

    Raises:
        RecipeError: it cannot be told.
    """
    from asyncrl.replay.offline import Offline
    from asyncrl.replay.offline_request import kept_request
    from asyncrl.replay.recorded_groups import Best
    from asyncrl.run.folder.run_folder import RunFolder
    from asyncrl.run.recipe.compose import compose

    if arguments.resume is not None:
        others = (arguments.recipe, arguments.runs or None, arguments.steps, arguments.top_reward, arguments.least_reward)
        if any(each is not None for each in others):
            raise RecipeError("--resume", "goes on with what the run was begun with", "leave all else out")
        folder = RunFolder.find(arguments.resume)
        folder.check_not_driven()
        before = kept_request(folder)
        runs = tuple(map(Path, before.runs))
        recipe = compose(str(folder.recipe))
        return Offline(recipe=recipe, runs=runs, first=before.first, last=before.last, best=before.best), folder, before
    if arguments.recipe is None or not arguments.runs:
        raise RecipeError("--from", "a recipe and what to train from are needed", "name both, or a run to --resume")
    first, last = arguments.steps or (1, None)
    named = [word for word in arguments.runs if isinstance(word, Path)]
    overrides = [*arguments.overrides, *(word for word in arguments.runs if isinstance(word, str))]
    best = Best(arguments.top_reward, arguments.least_reward)
    recipe = compose(arguments.recipe, overrides)
    return Offline(recipe=recipe, runs=tuple(named), first=first, last=last, best=best), None, None


def _evaluate(folder: RunFolder, versions: list[PolicyVersion], console: Console) -> ExitCode:
    from asyncrl.cli.evaluate import evaluate_to_end, prepare
    from asyncrl.run.evaluation.plan import in_directory_of
    from asyncrl.run.evaluation.request import EvaluationRequest

    evaluated = (0, *map(int, versions))
    request = EvaluationRequest(models=(str(folder.path),), recipe=None, overrides=(), samples=None, versions=evaluated)
    with in_directory_of(request) as here:
        return evaluate_to_end(*prepare(here), console)
