"""``asyncrl push``: puts a run's trained model on the Hugging Face hub, with a card made from the run."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, run_to_read
from asyncrl.cli.outcome import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.run.evaluation.found_model import EvaluatedModel
    from asyncrl.run.push.card import Card
    from asyncrl.run.push.hub_repository import HubRepository

_DESCRIPTION = """\
Put a run's newest model on the Hugging Face hub, with a model card made from the
run: what it began with, curves, evaluations with intervals, data, staleness and
the resolved recipe, without paths, addresses and secrets. What was pushed before
is replaced; what others put there is not. With --to, the files are written to a
folder instead, and nothing is sent."""

_EXAMPLES = """\
examples:
  asyncrl push runs/NAME-TIME my-account/my-model --to FOLDER    see what would be pushed
  asyncrl push runs/NAME-TIME my-account/my-model --private"""


def add_command(commands: Commands) -> None:
    """Add the command ``push``."""
    parser = command(commands, "push", "put a run's model on the Hugging Face hub", _DESCRIPTION, run, epilog=_EXAMPLES)
    parser.add_argument(
        "folder", metavar="RUN", type=partial(run_to_read, weights=True), help="the folder of a run, or its address"
    )
    parser.add_argument("hub_id", metavar="HUB_ID", help="where to put it, as OWNER/NAME")
    parser.add_argument("--private", action="store_true", help="make a private repository; one that is public is refused")
    parser.add_argument("--to", metavar="FOLDER", type=Path, help="the folder to make instead; needs no network and no token")


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Write the model and its card, and send them."""
    from asyncrl.core.files.model_copies import check_can_be_made
    from asyncrl.run.push.card import make_card
    from asyncrl.run.push.hub_repository import HubRepository
    from asyncrl.run.push.model_files import trained_model

    model = trained_model(arguments.folder)
    hub = HubRepository(arguments.hub_id, private=arguments.private)
    if arguments.to is not None:
        check_can_be_made(arguments.to.absolute())
    else:
        hub.open()
    card = make_card(model, hub.hub_id)
    for sentence in card.missing:
        console.print(Text(sentence, "yellow"), soft_wrap=True)
    if arguments.to is not None:
        _write(model, card, arguments.to.absolute(), console)
        console.print(Text(f"Written, and nothing was pushed: {arguments.to}"), soft_wrap=True)
    else:
        console.print(Text(f"Pushed: {_push(model, card, hub, console)}"), soft_wrap=True)
    return ExitCode.COMPLETED


def _write(model: EvaluatedModel, card: Card, folder: Path, console: Console) -> None:
    from asyncrl.run.push.model_files import write_model
    from asyncrl.run.views.live_view import LiveView

    with LiveView(console, model.name) as view:
        write_model(model, card, folder, view)


def _push(model: EvaluatedModel, card: Card, hub: HubRepository, console: Console) -> str:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="asyncrl-push-") as made:
        folder = Path(made) / "model"
        _write(model, card, folder, console)
        return hub.upload(folder, f"asyncrl: {model.name}")
