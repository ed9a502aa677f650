"""The report on a sweep: what it says, and how a browser shows it."""

from pathlib import Path

import pytest
from chromium import Page, chromium
from made_sweep import made_sweep

from asyncrl.cli.main import main
from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.measure_file import StepMeasure
from asyncrl.run.measures.summary import EvaluationEnds, StalenessTotals, Status, Summary
from asyncrl.run.recipe.compose import compose
from asyncrl.run.recipe.sweep_axes import Axis
from asyncrl.run.tracking.tracker import Tracker
from asyncrl.sweeps.parent_run import TrackedSweep
from asyncrl.sweeps.sweep import Point
from asyncrl.sweeps.sweep_folder import SweepFolder

STEPS = 6
HOSTILE = "</script><script>alert(1)</script><img src=http://x/y onerror=alert(1)>"
AXES = (Axis("buffer.max_staleness", ("0", "4")), Axis("environment.options.note", (f"'{HOSTILE}'", "plain")))


def measure(step: int, seconds: float) -> StepMeasure:
    return StepMeasure(
        step=step,
        time=TimeSplit(seconds=seconds, trained_tokens=1000, trajectories=8),
        rows=8,
        computed_tokens=1000,
        delivery_s=0.1,
        pause_s=0.1,
        staleness_mean=1.0,
        staleness_max=2,
        masked=0,
        filtered=0,
        complete=8,
        depth=1,
        engines=1,
        cores=2,
        device="cpu",
    )


def play(folder: SweepFolder, point: Point) -> None:
    """Make the run of a point: settings with max_staleness=4 are faster and staler."""
    fast = point.setting >= 2
    recipe = compose(str(folder.recipe_of(point.name)), [f"run_dir={folder.path}"])
    run = RunFolder.create(recipe)
    tracker = Tracker(recipe, run)
    tracker.start()
    for step in range(1, STEPS + 1):
        tracker.log(step, {"reward/mean": step / STEPS, "staleness/mean": 2.0 * fast, "run/trajectories_per_s": 10.0 + 10 * fast})
        tracker.log_measure(measure(step, (0.5 if fast else 1.0) * (1 + 0.01 * point.seed)))
    for version in (0, STEPS):
        tracker.log(version, {"evaluation/reward": 0.2 + 0.1 * version + 0.001 * point.seed})
    tracker.finish(Status.COMPLETED, 60)
    Summary(
        status=Status.COMPLETED,
        steps=STEPS,
        wall_s=60.0,
        training_s=6.0,
        evaluation=EvaluationEnds(0.2, 0.8 + 0.001 * point.seed),
        staleness=StalenessTotals(2.0 * fast, 4, 4),
        trajectories_per_s=(20.0 if fast else 10.0) + 0.1 * point.seed,
    ).recorded(run.summary)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """A sweep of four settings and two seeds, of which seven have completed, and one was killed as it began."""
    place = tmp_path_factory.mktemp("sweep")
    sweep = made_sweep(*AXES, fixed=("steps=6",))
    recipe = compose("quickstart", ["steps=6"])
    texts = {}
    for point in sweep.points:
        own = compose("quickstart", ["steps=6", f"name={point.name}", f"seed={point.seed}"])
        texts[point.name] = resolved_yaml(own)
    made = SweepFolder.create(str(place), sweep, texts)
    tracked = TrackedSweep(made, sweep, recipe.tracking)
    for point in sweep.points[:-1]:
        play(made, point)
    RunFolder.create(compose(str(made.recipe_of(sweep.points[-1].name)), [f"run_dir={made.path}"]))
    tracked.end("FAILED")
    assert main(["report", str(made.path)]) == 0
    return made


def test_it_compares_settings_and_says_what_differs_by_more_than_seeds_do(folder):
    page = folder.report.read_text(encoding="utf-8")
    assert "8 runs: 7 completed, 1 killed" in page
    assert "trajectories a second: max_staleness=4 note=&lt;/script&gt;" in page
    assert "final evaluation: no difference is larger than the spread of seeds" in page
    assert "By wall clock" in page
    assert "By trained token" in page
    assert page.count('data-across="seconds of training"') >= 3
    assert HOSTILE not in page


def test_the_points_are_nested_in_one_run_of_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.path / 'mlflow.db'}")
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    parent = folder.tracked_as.read_text()
    nested = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent]
    assert (len(runs), len(nested)) == (8, 7)
    (swept,) = [run for run in runs if run.info.run_id == parent]
    assert (swept.info.status, swept.data.params["buffer.max_staleness"], swept.data.params["seeds"]) == (
        "FAILED",
        "0, 4",
        "0, 1",
    )
    again = TrackedSweep(folder, folder.read(), compose("quickstart").tracking)
    assert client.get_run(parent).info.status == "RUNNING"
    again.end("FINISHED")
    assert client.get_run(parent).info.status == "FINISHED"


def test_a_sweep_among_other_folders_is_refused(folder, capsys):
    run = folder.run_of(folder.read().points[0])
    assert main(["report", str(folder.path), str(run.path)]) == 2
    assert "report on it alone" in capsys.readouterr().err
    assert main(["show", str(folder.path)]) == 2
    assert "is the folder of several runs" in capsys.readouterr().err


@pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium")
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (390, False), (390, True)])
def test_it_fits_its_window_loads_nothing_and_throws_nothing(folder, width, dark):
    with Page(width, dark=dark) as page:
        page.open(folder.report)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(22, 24, 27)" if dark else "rgb(255, 255, 255)"
        )
        assert page.evaluate("document.querySelectorAll('figure').length") >= 9
        assert page.evaluate("document.querySelector('figure').querySelectorAll('.part').length") == 6
        assert page.requested == [folder.report.as_uri()]
        assert page.errors == []


@pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium")
def test_pointing_at_a_curve_tells_the_mean_of_its_seeds(folder):
    with Page(1200) as page:
        page.open(folder.report)
        curve = "document.querySelector('#view1 [aria-label=\"reward/mean\"]').closest('figure')"
        page.evaluate(f"{curve}.scrollIntoView()")
        x, y, width = page.evaluate(
            f"(() => {{ const b = {curve}.querySelector('.plot').getBoundingClientRect(); return [b.x, b.y, b.width]; }})()"
        )
        page.move_to(x + width * 0.999, y + 20)
        assert page.evaluate(f"{curve}.querySelector('.at').textContent").endswith("seconds of training")
        assert len(page.evaluate(f"[...{curve}.querySelectorAll('.legend b')].map((b) => b.textContent)")) == 4
        page.move_to(0, 0)
        assert page.evaluate(f"{curve}.querySelector('.at').textContent") == "seconds of training"
        assert page.errors == []


def test_a_sweep_that_has_not_begun_has_a_report(tmp_path: Path):
    sweep = made_sweep()
    folder = SweepFolder.create(str(tmp_path), sweep, {point.name: "name: made\n" for point in sweep.points})
    assert main(["report", str(folder.path)]) == 0
    page = folder.report.read_text()
    assert "4 runs: 4 missing" in page
    assert "No run has completed yet." in page
