"""An evaluation of models: how it is planned and divided, and what becomes of its scores."""

from itertools import chain
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_checkpoints import make_checkpoint
from model_folders import SMALL, write_model, write_weights
from rich.console import Console

from asyncrl.buffers.tasks.task_stream import TaskSource
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import PolicyVersion, TaskId
from asyncrl.core.recipe.buffer import NoJournalConfig
from asyncrl.core.recipe.trajectories import AllTrajectoriesConfig
from asyncrl.core.task import Task
from asyncrl.core.trajectory import StopReason
from asyncrl.generators.evaluation import BrokenEpisode, EvaluationResult, HeldOutTask
from asyncrl.run.buffer.tasks import held_out_tasks
from asyncrl.run.evaluation.evaluate import PORTIONS_AT_ONCE, portion_out
from asyncrl.run.evaluation.plan import in_directory_of, plan_evaluation
from asyncrl.run.evaluation.request import EvaluationRequest
from asyncrl.run.evaluation.summary import EvaluationSummary, ModelScores, Played, difference_to, scores_by_source
from asyncrl.run.evaluation.view import evaluation_view
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import Status
from asyncrl.run.recipe.compose import compose


@given(tasks=st.integers(1, 300), samples=st.integers(1, 100), engines=st.integers(1, 5), room=st.integers(1, 256))
def test_portions_hold_every_task_once_and_fill_the_engines_without_flooding_them(tasks, samples, engines, room):
    held_out = [HeldOutTask(Task(id=TaskId(str(i)), prompt=""), "s", samples) for i in range(tasks)]
    portions, at_once = portion_out(held_out, engines, room)
    portions = list(portions)
    assert list(chain(*portions)) == held_out
    assert 1 <= at_once <= PORTIONS_AT_ONCE
    for_an_engine = at_once * len(portions[0]) * samples / engines
    assert for_an_engine <= max(room, samples), "an engine has more only where a single task is more"
    if len(portions) > at_once and room >= PORTIONS_AT_ONCE * samples:
        assert for_an_engine > room / 2


def request(
    *models: str, recipe: str | None = "quickstart", overrides: tuple[str, ...] = (), **asked: object
) -> EvaluationRequest:
    return EvaluationRequest(models=models, recipe=recipe, overrides=("tasks.evaluation=5", *overrides), **asked)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}", "tasks.evaluation=7"]))
    make_checkpoint(folder.checkpoints / "version-000020", PolicyVersion(20))
    return folder


def test_greedy_sampling_plays_each_task_once_and_other_sampling_eight_times():
    greedy, warm = plan_evaluation(request("tiny")), plan_evaluation(request("tiny", overrides=("evaluation.temperature=1",)))
    assert [each.samples for each in greedy.tasks] == [1] * 5
    assert [each.samples for each in warm.tasks] == [8] * 5
    assert (greedy.remarks, warm.remarks) == ((), ())
    (remark,) = plan_evaluation(request("tiny", samples=3)).remarks
    assert "the 3 samples of a task differ only where" in remark


def test_all_episodes_are_kept_and_nothing_could_be_resumed():
    recipe = plan_evaluation(request("tiny", overrides=("tracking.trajectories={keep: none}",))).recipe
    assert (recipe.tracking.trajectories, recipe.buffer.journal) == (AllTrajectoriesConfig(), NoJournalConfig())
    assert recipe.model.path == "tiny"


def test_a_damaged_checkpoint_is_refused_before_anything_is_played(run):
    weights = run.checkpoints / "version-000020" / "__0_0.distcp"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(RecipeError, match=r"version-000020 is damaged: __0_0\.distcp does not have the checksum"):
        plan_evaluation(EvaluationRequest(models=("tiny", str(run.path)), versions=(20,)))


def test_without_a_recipe_it_is_that_of_the_run(run):
    plan = plan_evaluation(EvaluationRequest(models=("tiny", str(run.path)), versions=(0, 20)))
    assert [each.model.name for each in plan.models] == ["tiny", f"{run.path.name} version 0", f"{run.path.name} version 20"]
    assert len(plan.tasks) == 7
    assert [each.trained_by is None for each in plan.models] == [True, False, False]
    with pytest.raises(RecipeError, match="no recipe is named, and none of the models is of a run"):
        plan_evaluation(EvaluationRequest(models=("tiny",)))


def test_a_version_of_a_run_has_the_chat_template_that_it_was_trained_with(run, tmp_path):
    model = write_model(run.path / "began-with", SMALL)
    template = (model / "chat_template.jinja").read_text() + "{% if mood %}{% endif %}"
    values = {"mood": "glad"}
    recipe = compose("quickstart", [f"model.path={model}", "tasks.evaluation=3"])
    recipe = msgspec.structs.replace(
        recipe, model=msgspec.structs.replace(recipe.model, chat_template=template, chat_template_kwargs=values)
    )
    run.keep_recipe(recipe)
    for asked in (EvaluationRequest(models=(str(run.path),), versions=(0,)), request(str(run.path), versions=(20,))):
        (planned,) = plan_evaluation(asked).models
        assert (planned.recipe.model.chat_template, planned.recipe.model.chat_template_kwargs) == (template, values)
    template += "{# another #}"
    named = request(str(run.path), versions=(0,), overrides=(f"model.chat_template='{tmp_path}/other.jinja'",))
    (tmp_path / "other.jinja").write_text(template)
    (planned,) = plan_evaluation(named).models
    assert (planned.recipe.model.chat_template, planned.recipe.model.chat_template_kwargs) == (template, {})


def test_a_model_is_evaluated_once_and_models_of_one_name_are_told_apart(run, tmp_path):
    with pytest.raises(RecipeError, match="is named twice"):
        plan_evaluation(request(str(run.path), str(run.path)))
    folders = [tmp_path / place / "model" for place in ("a", "b")]
    for folder in folders:
        write_model(folder, SMALL)
        (folder / "config.json").write_text('{"max_position_embeddings": 256}')
    plan = plan_evaluation(request(*map(str, folders)))
    assert [each.model.name for each in plan.models] == [str(folder) for folder in folders]
    with pytest.raises(RecipeError, match=r"model.max_context: 512 is more than the 256 positions of .*; set it to at most 256"):
        plan_evaluation(request(str(folders[0]), overrides=("model.max_context=512",)))


@pytest.mark.parametrize(
    ("overrides", "place"),
    [("generators.data_parallel=2", "data_parallel"), ("generators.engine={pipeline_parallel_size: 2}", "engine.pipeline_p")],
)
def test_what_no_run_of_the_model_may_have_is_refused(overrides, place, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    for model in ("tiny", str(tmp_path)):
        with pytest.raises(RecipeError) as caught:
            plan_evaluation(request(model, overrides=(overrides,)))
        assert caught.value.place.startswith(f"generators.{place}")


def test_a_model_that_the_learner_does_not_know_may_have_experts(tmp_path):
    write_model(tmp_path, SMALL)
    (tmp_path / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"]}')
    plan = plan_evaluation(request(str(tmp_path), overrides=("generators.data_parallel=2",)))
    assert plan.recipe.generators.data_parallel == 2


def played(rewards: dict[str, list[float]], missing: int = 0) -> Played:
    results = [
        EvaluationResult(TaskId(task), reward, StopReason.ENVIRONMENT_DONE if reward else StopReason.MAX_TURNS, turns=2)
        for task, several in rewards.items()
        for reward in several
    ]
    return Played(results, [BrokenEpisode(TaskId("d"), "task d: reward() raised KeyError: 'answer'")] * missing, seconds=1.0)


SOURCES = {"easy": [TaskId("a"), TaskId("b")], "hard": [TaskId("c"), TaskId("d")]}


def model_scores(name: str, own: Played, first: Played | None) -> ModelScores:
    scores, sources = scores_by_source(own, SOURCES, 2, 1.0)
    return ModelScores(
        model=name,
        path=f"/models/{name}",
        version=None,
        folder=f"/runs/evaluation/1-{name}",
        scores=scores,
        sources=sources,
        difference=None if first is None else difference_to(first, own, SOURCES, 1.0),
        missing=len(own.broken),
        missing_tasks=4 - scores.tasks,
        attempts=3,
        example=own.broken[0].problem if own.broken else "",
        turns=own.turns(),
        stopped=own.stopped(),
        seconds=1.0,
    )


def test_scores_by_source_and_the_difference_over_tasks_that_both_played(tmp_path):
    base = played({"a": [1.0, 0.0], "b": [0.0, 0.0], "c": [0.0, 0.0]}, missing=2)
    better = played({"a": [1.0, 1.0], "b": [1.0, 0.0], "c": [0.0, 0.0], "d": [1.0, 1.0]})
    summary = EvaluationSummary(
        status=Status.COMPLETED,
        recipe="r",
        environment="e",
        samples=2,
        temperature=1.0,
        passing_reward=1.0,
        models=(model_scores("base", base, None), model_scores("better", better, base)),
    )
    first, second = summary.models
    assert (first.scores.tasks, first.scores.episodes, first.missing) == (3, 6, 2)
    assert (first.sources["easy"].mean.value, first.sources["hard"].mean.value) == (0.25, 0.0)
    assert (first.sources["easy"].passed[1].value, first.sources["easy"].passed[2].value) == (0.25, 0.5)
    assert second.difference is not None
    assert second.difference.value == pytest.approx((0.5 + 0.5 + 0.0) / 3), "task d was played by one of them"
    path = tmp_path / "evaluation.json"
    assert summary.recorded(path) is summary
    assert EvaluationSummary.read(path) == summary
    console = Console(width=200)
    with console.capture() as captured:
        for part in evaluation_view(summary, tmp_path):
            console.print(part)
    shown = captured.get()
    for told in ("r: 4 tasks, 2 episodes of each", "mean@2", "pass@2", "to the first", "+0.333", "easy: 2 tasks", "[0.19, 0.99]"):
        assert told in shown
    assert "pass@1" not in shown, "it is the mean"
    told = " ".join(shown.split())
    assert "base: 2 episodes, among them all of 1 task, broke their environment in each of 3 tries" in told
    assert "in no score, e.g. task d: reward() raised KeyError: 'answer'; see /runs/evaluation/1-base/logs" in told
    assert "base: many episodes were cut off: 83 % by max_turns" in shown


def test_scores_that_cannot_be_written_are_a_failure(tmp_path):
    summary = EvaluationSummary(
        status=Status.COMPLETED, recipe="r", environment="e", samples=1, temperature=0.0, passing_reward=1.0
    )
    told = summary.recorded(tmp_path / "gone" / "evaluation.json")
    assert told.status is Status.FAILED
    assert told.reason.endswith("could not be written: No such file or directory")


def test_what_cannot_be_played_is_refused_before_an_engine_starts(tmp_path):
    folder = write_model(tmp_path, SMALL)
    with pytest.raises(RecipeError, match=r"has \d+ tokens with this model, and model.max_context is 12"):
        plan_evaluation(request(str(folder), overrides=("model.max_context=12", "sampling.max_turn_tokens=4")))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2])
    with pytest.raises(RecipeError, match="is not a whole safetensors file"):
        plan_evaluation(request(str(folder)))
    (folder / "chat_template.jinja").unlink()
    write_weights(folder, SMALL)
    with pytest.raises(RecipeError, match="there is none"):
        plan_evaluation(request(str(folder)))


def test_a_run_s_recipe_is_read_where_the_run_was_launched(tmp_path, monkeypatch):
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_model(project / "model", SMALL)
    (project / "model" / "config.json").write_text('{"max_position_embeddings": 256}')
    (project / "held-out.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n')
    files = "tasks={kind: files, train: [{path: train.jsonl}], evaluation: [{path: held-out.jsonl}]}"
    monkeypatch.chdir(project)
    run = RunFolder.create(compose("quickstart", [files, "model.path=model"]))
    monkeypatch.chdir(elsewhere)
    with in_directory_of(EvaluationRequest(models=("../project/runs/" + run.path.name,))) as there:
        plan = plan_evaluation(there)
    assert Path.cwd() == elsewhere
    assert [each.task.prompt for each in plan.tasks] == ["1+1"]
    assert plan.models[0].trained_by is not None
    assert plan.models[0].trained_by.model.path == plan.recipe.model.path == str(project / "model")


def test_an_environment_that_breaks_is_found_before_an_engine_starts(tmp_path, monkeypatch):
    (tmp_path / "broken_environment.py").write_text(
        "from asyncrl.envs.builtin.calculator import Calculator\n"
        "class Broken(Calculator):\n"
        "    def reward(self, task, answer):\n"
        "        return answr\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError, match="answr"):
        plan_evaluation(request("tiny", overrides=("environment.name=broken_environment:Broken",)))


def test_held_out_tasks_of_two_sources_with_the_same_id_are_told_apart():
    tasks = [[Task(id=TaskId(name), prompt=name) for name in ("1", "2", each)] for each in ("a", "b")]
    held_out = held_out_tasks([TaskSource("gsm8k.jsonl", tasks[0]), TaskSource("math.jsonl", tasks[1])], samples=2)
    assert [(each.task.id, each.source) for each in held_out] == [
        ("gsm8k.jsonl/1", "gsm8k.jsonl"),
        ("gsm8k.jsonl/2", "gsm8k.jsonl"),
        ("a", "gsm8k.jsonl"),
        ("math.jsonl/1", "math.jsonl"),
        ("math.jsonl/2", "math.jsonl"),
        ("b", "math.jsonl"),
    ]
