"""``asyncrl evaluate``: plays held-out tasks with models, and scores them."""

from __future__ import annotations

import argparse
import logging
import os
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, count, whole_number, writable_file
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode, logging_to
from asyncrl.core.errors import RecipeError
from asyncrl.core.storage.address import is_address

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.run.evaluation.folder import EvaluationFolder
    from asyncrl.run.evaluation.plan import EvaluationPlan
    from asyncrl.run.evaluation.request import EvaluationRequest

logger = logging.getLogger(__name__)

_DESCRIPTION = """\
Play the held-out tasks of a recipe with one or several models, and tell
mean@k and pass@k with confidence intervals. Only engines and environments are
started. Scores and all episodes are kept in one folder,
runs/evaluation-NAME-TIME.

A MODEL is a Hugging Face folder, a model of the hub, the folder of a run, or
`tiny`. RECIPE is the path of a .yaml file or the name of a shipped recipe;
without one, the recipe of the first run among the models is used."""

_EXAMPLES = """\
examples:
  asyncrl evaluate runs/NAME-TIME               a run's newest version
  asyncrl evaluate runs/NAME-TIME --version 0,80
  asyncrl evaluate my-model recipe.yaml evaluation.temperature=1 --samples 8
  asyncrl evaluate base-model runs/ONE runs/OTHER recipe.yaml --json scores.json

See docs/how-to/evaluate.md."""


def add_command(commands: Commands) -> None:
    """Add the command ``evaluate``."""
    usage = "asyncrl evaluate [-h] [--samples N] [--version N[,N...]] [--json FILE] MODEL [MODEL ...] [RECIPE] [KEY=VALUE ...]"
    summary = "score models on held-out tasks"
    parser = command(commands, "evaluate", summary, _DESCRIPTION, run, starts=True, epilog=_EXAMPLES, usage=usage)
    parser.add_argument("overrides", metavar="MODEL, RECIPE, KEY=VALUE", nargs="+", help="in any order; see above")
    samples = "episodes of each task (default evaluation.samples; where that is null 8, or 1 if evaluation.temperature is 0)"
    parser.add_argument("--samples", metavar="N", type=count, help=samples)
    parser.add_argument("--version", metavar="N[,N...]", type=_versions, default=(), help="policy versions of each run")
    parser.add_argument("--json", metavar="FILE", type=writable_file, help="also write the scores there")


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Plan the evaluation, and do it."""
    from asyncrl.run.evaluation.plan import in_directory_of

    json = None if arguments.json is None else arguments.json.resolve()
    with in_directory_of(sort_words(arguments.overrides, arguments.samples, arguments.version)) as request:
        plan, folder = prepare(request)
        return evaluate_to_end(plan, folder, console, json)


def sort_words(words: list[str], samples: int | None, versions: tuple[int, ...]) -> EvaluationRequest:
    """Tell models, recipe and overrides apart.

    Raises:
        RecipeError: two recipes are named.
    """
    from asyncrl.run.evaluation.request import EvaluationRequest
    from asyncrl.run.recipe.compose import shipped_recipes
    from asyncrl.run.storage.fetched_run import model_here

    models, recipes, overrides = [], [], []
    for word in words:
        if is_address(word):
            models.append(str(model_here(word)))
        elif os.path.isdir(word):
            models.append(word)
        elif "=" in word or word[0] in "~+":
            overrides.append(word)
        elif word.endswith((".yaml", ".yml")) or word in shipped_recipes():
            recipes.append(word)
        else:
            models.append(word)
    if len(recipes) > 1:
        raise RecipeError("", f"two recipes are named, {recipes[0]} and {recipes[1]}", "all models are evaluated by one")
    return EvaluationRequest(
        models=tuple(models),
        recipe=recipes[0] if recipes else None,
        overrides=tuple(overrides),
        samples=samples,
        versions=versions,
    )


def prepare(request: EvaluationRequest) -> tuple[EvaluationPlan, EvaluationFolder]:
    """Plan an evaluation and make its folder.

    Raises:
        RecipeError: it cannot be done as asked; nothing was started.
    """
    from asyncrl.run.evaluation.folder import EvaluationFolder
    from asyncrl.run.evaluation.plan import plan_evaluation
    from asyncrl.run.host.system_limits import check_limits

    check_limits()
    plan = plan_evaluation(request, say)
    return plan, EvaluationFolder.create(plan.recipe)


def evaluate_to_end(plan: EvaluationPlan, folder: EvaluationFolder, console: Console, json: Path | None = None) -> ExitCode:
    """Evaluate under the live view and show the scores."""
    from asyncrl.run.evaluation.evaluate import evaluate
    from asyncrl.run.evaluation.view import evaluation_view
    from asyncrl.run.host.system_limits import allow_open_files
    from asyncrl.run.views.live_view import LiveView

    allow_open_files()
    for remark in plan.remarks:
        console.print(Text(f"Note: {remark}", "yellow"), soft_wrap=True)
    with logging_to(folder.logs / "driver.log"), LiveView(console, plan.recipe.name) as view:
        summary = evaluate(plan, folder, view)
    if json is not None:
        summary = summary.recorded(json)
    for part in evaluation_view(summary, folder.path):
        console.print(part, soft_wrap=isinstance(part, Text))
    return ExitCode[summary.status.name]


def _versions(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(whole_number, text.split(",")))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} must be policy versions, e.g. 20 or 0,20,80: {error}") from error
