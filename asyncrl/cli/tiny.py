"""``asyncrl tiny``: makes a tiny model with the tokenizer and the chat template of another model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, count
from asyncrl.cli.outcome import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands

_DESCRIPTION = """\
Make a small model with random weights and the tokenizer and chat template of
another model, warm it up on the lessons of a recipe's environment, and write
it as a Hugging Face folder. So a real tokenizer, template, tool parser and
reasoning parser can be tried, and seen to learn, on a laptop: no weights of
the other model are needed."""

_EXAMPLES = """\
examples:
  asyncrl tiny quickstart --tokenizer Qwen3-0.6B --to tiny-qwen3 \\
      model.max_context=512 '+model.chat_template_kwargs={enable_thinking: false}'
  asyncrl launch quickstart model.path=tiny-qwen3 \\
      model.max_context=512 '+model.chat_template_kwargs={enable_thinking: false}'

See "A tiny model with a real tokenizer" in docs/reference/models.md."""


STEPS, TASKS, HELD_OUT, MEASURED, BATCH, THREADS = 300, 3000, 100, 50, 32, 1
"""Steps of the warm-up, tasks of each environment to train on and to measure on, steps between measurements, demonstrations in a
step, and threads: more and smaller steps than for the model ``tiny``, since here prompts are longer."""
SKILL = 0.5
"""Share of the tasks without temptation that the model must solve: it is to begin somewhere, and it is to learn."""


def add_command(commands: Commands) -> None:
    """Add the command ``tiny``."""
    summary = "make a tiny model with a real model's tokenizer"
    usage = "asyncrl tiny [-h] --tokenizer FOLDER --to FOLDER [--hidden N] [--entries N] [--steps N] RECIPE [KEY=VALUE ...]"
    parser = command(commands, "tiny", summary, _DESCRIPTION, run, starts=True, epilog=_EXAMPLES, usage=usage)
    parser.add_argument("recipe", metavar="RECIPE", help="a .yaml file, or the name of a shipped recipe")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", help="keys of the recipe; those of `model` and `environment` count"
    )
    parser.add_argument("--tokenizer", metavar="FOLDER", required=True, help="the folder of the tokenizer, or a model of the hub")
    parser.add_argument("--to", metavar="FOLDER", type=Path, required=True, help="the folder to make")
    parser.add_argument("--hidden", metavar="N", type=count, default=64, help="channels of the model (default 64)")
    parser.add_argument(
        "--entries", metavar="N", type=count, help="entries of its vocabulary (default: the tokenizer's, padded to 64)"
    )
    parser.add_argument(
        "--steps", metavar="N", type=count, default=STEPS, help=f"optimizer steps of the warm-up (default {STEPS})"
    )


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Make the model, and say where it is."""
    from asyncrl.generators.chat_template import TemplateUnsuitable
    from asyncrl.learners.tiny.settings import Size, WarmUp
    from asyncrl.run.models.hub import tokenizer_folder
    from asyncrl.run.nodes.machine import Machine
    from asyncrl.run.recipe.compose import compose_for
    from asyncrl.run.tiny.made_for_tokenizer import make_for_tokenizer
    from asyncrl.run.views.live_view import LiveView

    try:
        tokenizer = str(tokenizer_folder(arguments.tokenizer, "--tokenizer"))
        recipe, _ = compose_for(Machine.here(), arguments.recipe, arguments.overrides, tokenizer)
        size = Size(
            hidden=arguments.hidden,
            feed_forward=3 * arguments.hidden,
            entries=arguments.entries,
            context=max(Size().context, recipe.model.max_context),
        )
        settings = WarmUp(
            steps=arguments.steps,
            size=size,
            training_tasks=TASKS,
            held_out_tasks=HELD_OUT,
            measure_every=MEASURED,
            batch_size=BATCH,
            threads=THREADS,
            skill=SKILL,
        )
        with LiveView(console, str(arguments.to)) as view:
            view.phase(f"Making a tiny model with the tokenizer of {arguments.tokenizer}")
            make_for_tokenizer(recipe, arguments.to.absolute(), settings, view.advance)
    except TemplateUnsuitable as error:
        raise error.refusal("--tokenizer") from error
    console.print(Text(f"{arguments.to}"), soft_wrap=True)
    return ExitCode.COMPLETED
