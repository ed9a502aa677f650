"""Shows the screens of a launch whose run is played by a script: what was chosen, the live view, and the end."""

import logging
import signal
import sys

import msgspec
from made_progress import PROGRESS
from made_summary import SUMMARY

from asyncrl.cli import launch
from asyncrl.cli.console import PatientConsole
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.bottleneck import Bottleneck, Kind
from asyncrl.run.measures.summary import Summary
from asyncrl.run.views.live_view import LiveView

SENTENCE = (
    "generation-bound: in the last 20 training steps the learner waited for 30 % of the time for engines to generate; "
    "no key would make more than a tenth of a difference"
)
WARNING = (
    "in the last 4 training steps most of the episodes were cut by environment.max_turns, "
    "which says little about what the policy can do; raise environment.max_turns"
)
BOTTLENECK = Bottleneck(Kind.GENERATION, 0.3, SENTENCE)


def play(recipe: Recipe, folder: RunFolder, view: LiveView, reached: None, too_long: tuple[()]) -> Summary:
    """Play the run: two phases, notes and training steps, up to the signal that the test sends."""
    view.phase("Making the tiny model")
    view.phase("Training steps 1 to 60")
    view.note("version 0: evaluation reward 0.417 over 300 held-out tasks")
    view.note(f"Warning: {WARNING}", logging.WARNING)
    for step in range(1, 61):
        parts = {"right": step / 100, "brief": -0.01}
        view.update(msgspec.structs.replace(PROGRESS, step=step, reward=step / 100, reward_parts=parts, bottleneck=BOTTLENECK))
    signal.sigwait([signal.SIGUSR1])
    return msgspec.structs.replace(SUMMARY, bottleneck=BOTTLENECK, warnings=(WARNING,))


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    launch._launch = play
    accepted = launch.accept("quickstart", [f"run_dir={sys.argv[1]}"], None)
    sys.exit(launch.start(accepted, accepted.make_folder(), PatientConsole()))
