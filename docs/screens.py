"""Makes the pictures in docs/screens: ``make screens``, or ``make screens RUN=...`` for those of a run that there is.

Without a run it launches a short quickstart first. The pictures of the report need Chromium, and are left as they are without it.
"""

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from chromium import Page, chromium
from rich.console import Console
from rich.terminal_theme import MONOKAI

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.measures.metrics import Metric
from asyncrl.core.measures.time_split import IDLE_GENERATORS, IDLE_LEARNER, GeneratorTime, LearnerTime, TimeSplit
from asyncrl.episodes.measures import Measure
from asyncrl.episodes.reader import Choice, EpisodeReader
from asyncrl.episodes.schema import Kind
from asyncrl.learners.metrics import STALENESS_MAX, STALENESS_MEAN
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures import metrics
from asyncrl.run.measures.progress import RunProgress
from asyncrl.run.measures.summary import PlayedEvaluation, Summary
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tracking.metric_history import metric_history
from asyncrl.run.views.episode_view import episode_view
from asyncrl.run.views.live_view import LiveView

HERE = Path(__file__).resolve().parent / "screens"

TO_TIME = "document.getElementById('time').scrollIntoView()"
TO_TOKEN = """
const choose = (id, value) => {
  const select = document.getElementById(id);
  select.value = value;
  select.dispatchEvent(new Event("change"));
};
choose("sort", "length");
choose("colour", "version");
const tokens = [...document.querySelectorAll("#text span:not(.given)")];
tokens[Math.floor(tokens.length / 2)].click();
tokens[tokens.length - 1].scrollIntoView({ block: "center" });
document.getElementById("tokens").scrollIntoView();
"""


def main() -> None:
    """Make all pictures."""
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(sys.argv[1]) if sys.argv[1:] else _launched(Path(scratch))
        _live(run)
        _show(run)
        report = Path(scratch) / "report.html"
        _asyncrl("report", str(run), "--output", str(report))
        if chromium() is None:
            sys.exit("There is no Chromium here (apt-get install chromium): the pictures of the report stay as they are.")
        _picture(report, "report", 1100, 980)
        _picture(report, "report-time", 1100, 640, TO_TIME)
        _picture(report, "report-tokens", 1100, 940, TO_TOKEN, dark=True)
        _picture(report, "report-phone", 390, 844, TO_TIME, dark=True)


def _asyncrl(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "asyncrl.cli.main", *arguments], check=True)


def _launched(folder: Path) -> Path:
    _asyncrl("launch", "quickstart", "steps=40", "evaluation.every=5", "tracking.trajectories={keep: all}", f"run_dir={folder}")
    (run,) = folder.glob("quickstart-*")
    return run


def _show(run: Path) -> None:
    """Draw the episode with the lowest reward as ``asyncrl show`` shows it."""
    reader = EpisodeReader(run / "trajectories")
    places = reader.places(Choice(kind=Kind.TRAIN), Measure.REWARD)
    (episode,) = reader.read(places.slice(0, 1))
    console = _recording()
    console.print(episode_view(episode, f"1 of {len(places):,}", reader.tree(episode)))
    _drawing(console, "show", "asyncrl show RUN --sort reward")


def _live(run: Path) -> None:
    """Draw the live view as it was at three quarters of the run, from the run's metrics."""
    folder = RunFolder.find(run)
    recipe = compose(str(folder.recipe), [])
    summary = Summary.read(folder.summary)
    history = metric_history(folder, recipe.tracking)
    step_s = summary.training_s / recipe.steps
    now = [0.0]
    console = _recording()
    view = LiveView(console, recipe.name, clock=lambda: now[0])
    view.phase(f"Training steps 1 to {recipe.steps}")
    for step in range(1, recipe.steps * 3 // 4 + 1):

        def value(metric: Metric, step: int = step) -> float:
            series = history[metric.name]
            return next(
                (each for at, each in zip(reversed(series.steps), reversed(series.values), strict=True) if at <= step), 0.0
            )

        now[0] = step * step_s
        view.update(
            RunProgress(
                step=step,
                steps=recipe.steps,
                version=step - 1,
                reward=value(metrics.REWARD),
                time=_time(value, step_s),
                sampled_tokens=0,
                staleness_mean=value(STALENESS_MEAN),
                staleness_max=value(STALENESS_MAX),
                staleness_bound=recipe.buffer.max_staleness,
                running=int(value(metrics.RUNNING)),
                committed=int(value(metrics.COMMITTED)),
                delivery_s=value(metrics.PUBLISH_DELIVERY),
                pause_s=value(metrics.PUBLISH_PAUSE),
                pipeline_depth=int(value(metrics.PIPELINE_DEPTH)),
                bottleneck=summary.bottleneck,
                eta_s=(recipe.steps - step) * step_s,
                evaluation=_evaluation(step, value(metrics.EVALUATION_REWARD)),
            )
        )
    console.print(view._draw())
    _drawing(console, "live", "asyncrl launch quickstart")


def _time(value: Callable[[Metric], float], seconds: float) -> TimeSplit:
    idle = value(IDLE_GENERATORS)
    return TimeSplit(
        seconds=seconds,
        learner=LearnerTime(training=seconds * (1 - value(IDLE_LEARNER))),
        generators=GeneratorTime(sampling=1 - idle, nothing=idle),
        trajectories=round(seconds * value(metrics.TRAJECTORY_RATE)),
        trained_tokens=round(seconds * value(metrics.TRAINED_RATE)),
        generated_tokens=round(seconds * value(metrics.GENERATED_RATE)),
    )


def _evaluation(step: int, reward: float) -> PlayedEvaluation:
    version = PolicyVersion(step - 1)
    return PlayedEvaluation(version, version, version, reward)


def _recording() -> Console:
    return Console(record=True, width=100, file=io.StringIO(), color_system="truecolor", force_terminal=True)


def _drawing(console: Console, name: str, title: str) -> None:
    drawn = console.export_svg(title=title, theme=MONOKAI)
    # The fonts that rich names lie on a server; a picture in the docs loads nothing.
    (HERE / f"{name}.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL), encoding="utf-8")


def _picture(report: Path, name: str, width: int, height: int, script: str = "", *, dark: bool = False) -> None:
    with Page(width, height, dark=dark) as page:
        page.open(report)
        page.evaluate(script)
        page.screenshot(HERE / f"{name}.png")


if __name__ == "__main__":
    main()
