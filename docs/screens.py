"""Makes the pictures in docs/screens: ``make screens``, or ``make screens RUN=...`` for those of a run that there is.

Without a run it launches a short quickstart first. The pictures of the report need Chromium, and are left as they are without it.
"""

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from chromium import Page, chromium
from rich.console import Console
from rich.terminal_theme import MONOKAI

from asyncrl.episodes.measures import Measure
from asyncrl.episodes.reader import Choice, EpisodeReader
from asyncrl.episodes.schema import Kind
from asyncrl.run.episode_view import episode_view

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
    console = Console(record=True, width=100, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    console.print(episode_view(episode, f"1 of {len(places):,}"))
    drawn = console.export_svg(title="asyncrl show RUN --sort reward", theme=MONOKAI)
    # The fonts that rich names lie on a server; a picture in the docs loads nothing.
    (HERE / "show.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL), encoding="utf-8")


def _picture(report: Path, name: str, width: int, height: int, script: str = "", *, dark: bool = False) -> None:
    with Page(width, height, dark=dark) as page:
        page.open(report)
        page.evaluate(script)
        page.screenshot(HERE / f"{name}.png")


if __name__ == "__main__":
    main()
