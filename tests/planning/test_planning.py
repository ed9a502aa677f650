"""A plan from the recipe to its page, with rates of a shipped file and with a run that was made here."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from asyncrl.cli.main import main
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.learner import LoraConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.planning import plan_request
from asyncrl.planning.page import plan_page
from asyncrl.planning.plan_request import SYNCHRONOUS, PlanAnswer, PlanRequest, answer
from asyncrl.planning.prediction import Prediction, predict
from asyncrl.planning.rate_sources import basis_of_file, machine_of
from asyncrl.planning.rates_file import read_rates
from asyncrl.planning.view import plan_answer_view
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.recipe.compose import compose
from asyncrl.run.report.figures import number
from asyncrl.simulation.outcome import ModelStandsStill
from asyncrl.simulation.rates import Rate, Rates

KEYS = ("model.max_context=20000", "sampling.max_turn_tokens=16000", "batch.groups_per_step=4", "batch.group_size=4")


def planned(*vary: str, gpus: int | None = None, keys: Sequence[str] = ()) -> PlanAnswer:
    file = read_rates("h100")
    request = PlanRequest(recipe="quickstart", overrides=(*KEYS, *keys), vary=vary, gpus=gpus, seeds=2, steps=6)
    return answer(request, lambda recipe: basis_of_file(file, "h100", None), machine_of(file, gpus))


def test_without_a_budget_a_plan_is_of_one_machine():
    found = planned()
    assert found.points[0].gpus == 8
    assert "generators.count is auto, and 7 as the recipe is" in found.notes[0]
    assert not planned("generators.count=1").remarks
    assert not planned(gpus=2).remarks


def test_more_engines_and_more_depth_are_faster_and_staler():
    found = planned("generators.count=1,4", "buffer.pipeline_depth=1,3")
    by_name = {each.name: each for each in found.points}
    slow, fast = by_name["count=1 pipeline_depth=1"], by_name["count=4 pipeline_depth=3"]
    assert fast.trajectories_per_s.mean > 1.2 * slow.trajectories_per_s.mean
    assert fast.staleness_mean.mean > slow.staleness_mean.mean
    assert found.synchronous is not None
    assert (found.synchronous.staleness_mean.mean, found.synchronous.staleness_max) == (0.0, 0)
    assert all(each.low <= each.mean <= each.high for point in found.points for each in (point.trajectories_per_s, point.step_s))
    assert sum(fast.histogram.values()) == pytest.approx(1.0)
    assert slow.gpus == 2
    assert fast.bottleneck


def test_engines_that_a_machine_has_no_room_for_are_not_chosen_but_may_be_named():
    keys = ("batch.groups_per_step=16", "learner.data_parallel=16")
    with pytest.raises(RecipeError, match=r"generators.count: is auto, .* 16 ranks .* of 8 GPUs for an engine; set it, vary it"):
        planned(keys=keys)
    assert planned(keys=(*keys, "generators.count=4")).points[0].gpus == 20
    assert [each.gpus for each in planned("generators.count=4,8", keys=keys).points] == [20, 24]
    found = planned("learner.data_parallel=4,8", keys=keys[:1])
    assert [each.gpus for each in found.points] == [8]
    assert [each.name for each in found.refused] == ["data_parallel=8"]


def test_a_budget_is_predicted_in_all_its_splits():
    found = planned(gpus=4)
    assert {each.gpus for each in found.points} == {4}
    assert len({each.overrides[:2] for each in found.points}) == 3
    ranks = found.best.overrides[0].removeprefix("learner.data_parallel=")
    assert f"{found.rates['learner.ranks'].value:g}" == ranks, "rates are those of the fastest"


def test_synchronous_training_gets_the_best_split_of_a_budget():
    found, slow = planned(gpus=4), []
    for ranks in (1, 2, 3):
        keys = (f"learner.data_parallel={ranks}", f"generators.count={4 - ranks}", *SYNCHRONOUS)
        slow.append(planned(keys=keys).points[0].trajectories_per_s)
    assert found.synchronous is not None
    assert found.synchronous.trajectories_per_s == max(slow, key=lambda each: each.mean)
    assert found.synchronous.overrides[2:] == SYNCHRONOUS


def test_what_tune_may_turn_bounds_no_plan():
    tune = "tune={knobs: {buffer.pipeline_depth: [1, 4], generators.count: [1, 2]}}"
    found = planned("generators.count=1,4", keys=(tune, "buffer.pipeline_depth=1", "generators.count=1"))
    assert not found.refused
    assert found.synchronous is not None
    assert found.remarks == ("section tune was left out: sizes were foreseen as a run begins with them",)


def test_why_synchronous_training_is_not_foreseen_is_said():
    found = planned(keys=("buffer.max_reuse=2", "buffer.pipeline_depth=1"))
    assert found.synchronous is None
    assert found.remarks[-1].startswith("synchronous training could not be foreseen: buffer.max_reuse")


def test_a_point_that_cannot_be_modelled_ends_no_grid(monkeypatch: pytest.MonkeyPatch):
    def predicted(recipe: Recipe, *rest: Any, **further: Any) -> Prediction:
        if recipe.generators.count == 2 or recipe.buffer.max_staleness == 0:
            raise ModelStandsStill(3, 5.0)
        return predict(recipe, *rest, **further)

    monkeypatch.setattr(plan_request, "predict", predicted)
    found = planned("generators.count=1,2")
    assert [each.name for each in found.points] == ["count=1"]
    assert [each.name for each in found.refused] == ["count=2"]
    assert "stands still at step 3" in found.remarks[-1]
    with pytest.raises(ModelStandsStill):
        planned("generators.count=2")


@pytest.mark.parametrize(
    ("vary", "gpus", "said"),
    [
        (("generators.count=8:1",), None, "does not go upwards"),
        (("generators.count=1:401",), None, "401 points"),
        (("buffer.pipeline_depth=8,9",), None, "every point is refused; the first, pipeline_depth=8"),
        ((), 1, "--gpus: 1 GPUs are too few"),
    ],
)
def test_what_is_asked_for_is_checked_before_rates_are_looked_for(vary: tuple[str, ...], gpus: int | None, said: str):
    request = PlanRequest(recipe="quickstart", overrides=KEYS, vary=vary, gpus=gpus)
    with pytest.raises(RecipeError, match=said):
        answer(request, lambda recipe: pytest.fail("rates are looked for"), machine_of(read_rates("h100"), gpus))


@pytest.mark.parametrize("width", [80, 60])
def test_a_grid_keeps_names_and_figures_in_a_narrow_terminal(width: int):
    found = planned("generators.count=1,2", "buffer.pipeline_depth=1,3")
    point = found.points[3]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(plan_answer_view(found))
    shown = "".join(console.export_text().split("Rates")[0].split())
    for part in ("count=2", "pipeline_depth=3") if width == 80 else ():
        assert part in shown
    for figure in (point.trajectories_per_s.low, point.trajectories_per_s.high, point.trained_tokens_per_s.mean):
        assert number(figure) in shown
    for name in ("a second", "tokens/s", "GPUs", "too old", "given up"):
        assert name.replace(" ", "") in shown


def test_a_budget_of_gpus_is_not_divided_by_rates_of_a_cpu():
    file = msgspec.structs.replace(read_rates("h100"), device="cpu")
    request = PlanRequest(recipe="quickstart", overrides=KEYS, gpus=4)
    with pytest.raises(RecipeError, match="own was measured on a CPU"):
        answer(
            request, lambda recipe: msgspec.structs.replace(basis_of_file(file, "h100", None), name="own"), machine_of(file, 4)
        )


def test_a_model_that_fits_into_no_engine_is_refused():
    file = read_rates("h100")
    assert file.hardware is not None
    small = msgspec.structs.replace(file, hardware=msgspec.structs.replace(file.hardware, memory_bytes=Rate(4e9, "given")))
    request = PlanRequest(recipe="quickstart", overrides=KEYS)
    with pytest.raises(RecipeError, match=r"generators.tensor_parallel: .*no room for a key-value cache on 1 x NVIDIA H100"):
        answer(request, lambda recipe: basis_of_file(small, "small", None), machine_of(file, 4))


def test_a_learner_that_does_not_fit_is_refused():
    file = read_rates("h100")
    assert file.hardware is not None
    small = msgspec.structs.replace(file, hardware=msgspec.structs.replace(file.hardware, memory_bytes=Rate(5e9, "given")))
    vary = ("learner.micro_batch_tokens=20000,120000",)
    request = PlanRequest(recipe="quickstart", overrides=(*KEYS, "generators.count=1"), vary=vary, seeds=1, steps=4)
    found = answer(request, lambda recipe: basis_of_file(small, "small", None), machine_of(file, 2))
    assert [each.name for each in found.points] == ["micro_batch_tokens=20000"]
    assert "learner: a rank needs about 5.1 GiB" in found.refused[0].why
    assert "NVIDIA H100 80GB HBM3 has 4.7 GiB; use more ranks" in found.refused[0].why


def test_adapters_alone_are_moved_added_up_and_trained():
    hardware, shape = read_rates("h100").hardware, read_shape("tiny")
    assert hardware is not None

    def rates(*keys: str) -> Rates:
        recipe = compose("quickstart", ["learner.data_parallel=2", "learner.recompute=none", *keys])
        assert hardware is not None
        return hardware.rates(shape, recipe, 200.0)

    whole, adapters = rates(), rates("learner.lora={rank: 1, publish: adapter}")
    share = shape.adapter_parameters(LoraConfig(rank=1)) / shape.parameters
    assert adapters.publication.move.value == pytest.approx(share * whole.publication.move.value)
    reduced = [each.learner.step.value - hardware.learner_step.value for each in (adapters, whole)]
    assert reduced[0] == pytest.approx(share * reduced[1])
    assert 4 / 6 < adapters.learner.token.value / whole.learner.token.value < 0.85
    assert rates("learner.lora={rank: 1}").publication.move == whole.publication.move, "merged weights are whole"


def test_points_that_are_refused_are_listed_with_the_reason():
    found = planned("buffer.pipeline_depth=1,9")
    assert [each.name for each in found.points] == ["pipeline_depth=1"]
    assert "pipeline_depth" in found.refused[0].why
    with pytest.raises(RecipeError, match="every point is refused"):
        planned("buffer.pipeline_depth=8,9")


def test_notes_that_differ_in_numbers_alone_are_one_and_name_their_point():
    found = planned("generators.count=1,2")
    said = [("of all", "4 ranks of 1,200"), ("of all", "8 ranks of 3.5", "other")]
    points = tuple(msgspec.structs.replace(point, notes=notes) for point, notes in zip(found.points, said, strict=True))
    told = ["of all", "count=1: 4 ranks of 1,200 (and of 1 other point)", "count=2: other"]
    assert msgspec.structs.replace(found, points=points).notes == told


def test_the_same_plan_is_the_same_to_the_byte():
    assert msgspec.json.encode(planned()) == msgspec.json.encode(planned())


def test_the_page_loads_nothing_and_holds_names_as_text():
    found = planned("generators.count=1,2")
    wicked = msgspec.structs.replace(found.points[0], name="<script>alert(1)</script>")
    page = plan_page(msgspec.structs.replace(found, points=(wicked, *found.points[1:])))
    assert "default-src 'none'" in page
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "src=" not in page.replace("style-src", "")


def test_the_command_writes_what_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = [f"--json={tmp_path / 'plan.json'}", f"--html={tmp_path / 'plan.html'}"]
    arguments = ["plan", "quickstart", *KEYS, "generators.count=2", "--rates", "h100", "--seeds", "1", "--steps", "4", *out]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "trajectories/s" in shown
    assert "vendor's data sheet" in shown
    written = msgspec.json.decode((tmp_path / "plan.json").read_bytes(), type=PlanAnswer)
    assert written.points[0].trajectories_per_s.mean > 0
    assert (tmp_path / "plan.html").read_text().startswith("<!doctype html>")


def test_a_file_that_cannot_be_written_loses_no_answer(capsys: pytest.CaptureFixture[str]):
    arguments = ["plan", "quickstart", *KEYS, "generators.count=1", "--rates", "h100", "--seeds", "1", "--steps", "4"]
    assert main([*arguments, "--json=/dev/full"]) == 1
    shown = capsys.readouterr()
    assert "trajectories/s" in shown.out
    assert "No space left on device" in shown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rates", "nowhere.yaml"], "nowhere.yaml"),
        (["--from", "nowhere"], "nowhere"),
        (["--rates", "h100", "--vary", "generators.count"], "names no key with values"),
        (["--rates", "h100", "--vary", "generators.count=1:2", "--gpus", "8"], "give one of both"),
        (["--probe", "--gpus", "8"], "this machine, which a probe measures, has no GPU"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "quickstart", *arguments]) == 2
    assert said in "".join(capsys.readouterr().err.split("\n"))


def test_a_plan_needs_rates(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["plan", "quickstart"])
    assert "--from RUN, --probe or --rates FILE" in capsys.readouterr().err
