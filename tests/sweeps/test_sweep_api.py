"""Sweeps from Python: what a call asks for, what is refused and raised, and what is read from a folder."""

import sys

import numpy as np
import pytest
from made_sweep import made_sweep

import asyncrl
from asyncrl.api import sweeps
from asyncrl.api.driver_process import Ended
from asyncrl.cli.driving.messages import SweepRequest
from asyncrl.cli.outcome import ExitCode
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.recipe.sweep_axes import Axis, read_axes
from asyncrl.sweeps.sweep_folder import SweepFolder


def asked(monkeypatch: pytest.MonkeyPatch, *given, **options) -> SweepRequest:
    """What the process that drives a sweep would be asked for."""
    requests = []

    def drive(request: SweepRequest) -> Ended:
        requests.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "drive", drive)
    with pytest.raises(KeyboardInterrupt):
        asyncrl.sweep(*given, **options)
    return requests[0]


def test_values_are_those_of_the_command_line(monkeypatch):
    values = {
        "buffer.max_staleness": range(0, 4, 2),
        "learner": {"lr": np.array([1e-4, 2e-4])},
        "algorithm.loss": [{"kind": "ppo_clip", "epsilon": 0.1}, {"kind": "dppo"}],
        "name": ["a,b", "c"],
        "steps": [7],
    }
    request = asked(monkeypatch, "quickstart", values, {"batch.group_size": 4}, seeds=2, parallel=3)
    assert (request.recipe, request.seeds, request.parallel) == ("quickstart", 2, 3)
    varied = read_axes("quickstart", request.overrides)
    assert varied.axes == (
        Axis("buffer.max_staleness", ("0", "2")),
        Axis("learner.lr", ("0.0001", "0.0002")),
        Axis("algorithm.loss", ("{kind:'ppo_clip',epsilon:0.1}", "{kind:'dppo'}")),
        Axis("name", ("'a,b'", "'c'")),
    )
    assert varied.fixed == ("batch.group_size=4", "steps=7")
    assert asked(monkeypatch, "quickstart", ["steps=7,8"]).overrides == ("steps=7,8",)


@pytest.mark.parametrize(
    ("values", "options", "told"),
    [
        ({"steps": 7}, {}, "steps: 7 is no list of values"),
        ({"learner": {}}, {}, r"learner: {} is no list of values"),
        ({"learner": {"lr": []}}, {}, r"learner.lr: \[\] is no list of values"),
        ({3: [7, 8]}, {}, "3 is no key"),
        ({"steps": "78"}, {}, "steps: '78' is no list of values"),
        ({"steps": [1j, 2]}, {}, "steps: 1j cannot stand in a recipe"),
        ("steps=7,8", {}, "overrides is the text"),
        ({"steps": [7, 8]}, {"seeds": 0}, "seeds: 0 is no number of runs"),
        ({"steps": [7, 8]}, {"parallel": True}, "parallel: True is no number of runs"),
        ({"steps": [7, 8]}, {"parallel": None}, "parallel: None is no number of runs"),
    ],
)
def test_what_is_no_sweep_is_refused(values, options, told):
    with pytest.raises(asyncrl.RecipeError, match=told):
        asyncrl.sweep("quickstart", values, **options)


def test_code_that_only_this_program_knows_is_refused(monkeypatch):
    def schedule(step):
        return 1.0

    monkeypatch.setattr(sys.modules["__main__"], "schedule", schedule, raising=False)
    schedule.__module__, schedule.__qualname__ = "__main__", "schedule"
    with pytest.raises(asyncrl.RecipeError, match="is known in this program only"):
        asyncrl.sweep("quickstart", {"steps": [7, 8]}, {"learner.schedule.name": schedule})


def test_refusals_of_the_process_that_drives_are_raised(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(asyncrl.RecipeError, match="there is only one run"):
        asyncrl.sweep("quickstart", {"steps": [7]})
    assert list(tmp_path.iterdir()) == []
    folder = SweepFolder.create(str(tmp_path), sweep := made_sweep(), {point.name: "" for point in sweep.points})
    with folder.driven(), pytest.raises(asyncrl.RecipeError, match="another process is still running the sweep"):
        asyncrl.Sweep(folder.path).resume()
    with pytest.raises(asyncrl.RecipeError, match="parallel: '2' is no number of runs"):
        asyncrl.Sweep(folder.path).resume(parallel="2")


def test_a_sweep_is_read_from_its_folder_however_far_it_is(tmp_path):
    lr = Axis("learner.lr", ("1e-4", "2e-4"))
    sweep = made_sweep(Axis("+environment.options.note", ("'a,b'", "7")), lr, seeds=(3,))
    folder = SweepFolder.create(str(tmp_path), sweep, {point.name: "" for point in sweep.points})
    for number, (point, status) in enumerate(zip(sweep.points, (Status.COMPLETED, Status.FAILED), strict=False)):
        run = folder.path / f"{point.name}-20260101T000000Z"
        run.mkdir()
        (run / "recipe.yaml").touch()
        Summary(status=status, reason="no more coffee", trajectories_per_s=10.0 + number).write(run / "summary.json")
    found = asyncrl.Sweep(folder.path)
    assert [point.state for point in found.points] == ["completed", "failed", "missing", "missing"]
    assert found.points[1].values == {"environment.options.note": "a,b", "learner.lr": 2e-4}
    assert found.points[1].run.summary.reason == "no more coffee"
    assert found.points[2].run is None
    table = found.table().to_pydict()
    assert table["setting"][:2] == ["note=a,b lr=1e-4", "note=a,b lr=2e-4"]
    assert table["environment.options.note"] == ["a,b", "a,b", "7", "7"]
    assert table["learner.lr"] == [1e-4, 2e-4, 1e-4, 2e-4]
    assert (table["seed"], table["state"][1:3]) == ([3] * 4, ["failed", "missing"])
    assert table["trajectories a second"] == [10.0, 11.0, None, None]
    assert found.differences() == []
    told = r"3 of 4 runs did not complete: note=a,b lr=2e-4 seed=3 failed; note=7 lr=1e-4 seed=3 missing"
    with pytest.raises(asyncrl.RunFailed, match=told):
        sweeps._completed(Ended(folder.path, ExitCode.FAILED))
    with pytest.raises(asyncrl.RunFailed, match="was killed by signal 9"):
        sweeps._completed(Ended(folder.path, -9))
    with pytest.raises(asyncrl.RunInterrupted, match="a signal stopped the sweep"):
        sweeps._completed(Ended(folder.path, ExitCode.INTERRUPTED))
    with pytest.raises(asyncrl.RecipeError, match=r"it has no sweep\.json"):
        asyncrl.Sweep(tmp_path)
