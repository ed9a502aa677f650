"""``asyncrl bench plan``: each setting is predicted from the next of its workload; what was found survives what fails later."""

import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from test_fit_run import made_run

from asyncrl.bench import plan
from asyncrl.core.errors import ComponentFailed
from asyncrl.planning.prediction import MEDIAN_ERROR, WORST_ERROR

SETTINGS = (plan.SETTINGS[4], plan.SETTINGS[5], plan.SETTINGS[8])
"""Two of one workload, and one of another."""


def test_what_was_found_is_written_after_each_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = {setting.name: made_run(tmp_path / str(number)).path for number, setting in enumerate(SETTINGS[:2])}

    def measured(_: object, name: str, *rest: object) -> str:
        if name not in made:
            raise ComponentFailed("the machine is taken away")
        return str(made[name])

    monkeypatch.setattr(plan, "in_own_process", measured)
    file = tmp_path / "plan.json"
    with pytest.raises(ComponentFailed, match="taken away"):
        plan.run(file, Console(quiet=True), SETTINGS)
    found = json.loads(file.read_bytes())
    for setting in SETTINGS[:2]:
        assert found[f"{setting.name}.measured"] == pytest.approx(64.0)  # 128 rows in 2 s
        assert found[f"{setting.name}.predicted"] > 0
        assert found[f"{setting.name}.low"] < found[f"{setting.name}.predicted"] < found[f"{setting.name}.high"]
    assert found["median_error"] <= found["worst_error"]
    assert not any(key.startswith(SETTINGS[2].name) for key in found)


def test_the_summary_is_of_all_settings_and_ranks_within_a_workload():
    seen = plan.Seen(100.0, 1.0, 0.1, 0.2)
    fast, slow = (msgspec.structs.replace(seen, trajectories_per_s=speed) for speed in (150.0, 50.0))
    names = [setting.name for setting in SETTINGS]
    first = plan.PlanBenchResult(
        {names[0]: seen, names[1]: fast},
        {names[0]: seen, names[1]: slow},
        dict.fromkeys(names[:2], 0.0),
        {names[0]: (95.0, 105.0), names[1]: (140.0, 160.0)},
    )
    both = first.with_more(plan.PlanBenchResult({names[2]: seen}, {names[2]: slow}, {names[2]: 0.0}, {names[2]: (90.0, 110.0)}))
    flat = both.flat()
    assert flat["worst_error"] == 2.0
    assert flat["median_error"] == 1.0
    assert flat["ranking_right"] == 0.0
    assert flat["inside_intervals"] == pytest.approx(1 / 3)
    assert first.ranking_right == 0.0


def test_what_plans_say_of_their_own_errors_is_what_was_measured():
    measured = (Path(__file__).parents[2] / "docs" / "benchmarks" / "speed.md").read_text()
    assert f"| error of trajectories a second, median | {100 * MEDIAN_ERROR:.1f} % |" in measured
    assert f"| {100 * WORST_ERROR:.0f} %, **missed** | 20 % |" in measured
