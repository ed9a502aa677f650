"""Training from recorded trajectories: what is gathered, what is refused, and that the learner trains it."""

import io
import shutil
from pathlib import Path

import msgspec
import pytest
from learner_samples import make_model
from made_run import make_run, small_recipe
from mlflow import MlflowClient
from rich.console import Console

from asyncrl.cli.main import command_line
from asyncrl.cli.train_offline import _asked
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.replay.kept_steps import KeptSteps
from asyncrl.replay.offline import Offline, plan_offline, train_offline
from asyncrl.replay.offline_request import OfflineRequest, kept_request, proof_of
from asyncrl.replay.rank_process import episodes_of
from asyncrl.replay.recorded_groups import Best, Recorded, as_of
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.folder.step_log import Launched, RecordedSteps, StepLog, StepRecord
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.views.live_view import LiveView

IMITATE = ["algorithm.loss={kind: cross_entropy}", "algorithm.correction={anchor: proximal_recomputed, weight: none}"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of 6 steps of 2 groups of 4 episodes, half of them rewarded."""
    parent = tmp_path_factory.mktemp("recorded")
    return make_run(small_recipe(make_model(parent / "model"), parent))


def offline(recorded: RunFolder, parent: Path, *overrides: str, **options: object) -> Offline:
    model = recorded.path.parent / "model"
    return Offline(recipe=small_recipe(model, parent, *overrides), runs=(recorded.path,), **options)


def test_groups_come_in_their_order_and_then_in_another_with_all_that_was_recorded(recorded: RunFolder, tmp_path: Path):
    asked = offline(recorded, tmp_path, "steps=12")
    groups, remarks = plan_offline(asked, tmp_path)
    assert remarks == ("the 12 recorded groups are trained 2.0 times, because steps is 12",)
    batches = list(groups.batches(asked.recipe))
    first, second = ([each.payload.offset for batch in part for each in batch.episodes] for part in (batches[:6], batches[6:]))
    assert sorted(first) == sorted(second), "every pass trains everything once"
    assert first != second
    batch = batches[7]
    episodes = episodes_of(batch, [row.name for row in batch.rows], groups.payload, renamed=True)
    for record in batch.trained:
        episode = episodes[record.name]
        (trajectory,) = episode.trajectories
        assert set(trajectory.versions()[trajectory.loss_mask]) == {7}
        assert record.trainable_tokens(batch.oldest_version) == trajectory.loss_mask.sum()
        assert episode.reward == record.reward


@pytest.mark.parametrize(("best", "left"), [(Best(2), 2), (Best(3, 1.0), 2), (Best(None, 0.0), 4), (Best(1, 0.5), 1)])
def test_the_best_of_each_group_are_taken(recorded: RunFolder, tmp_path: Path, best: Best, left: int):
    asked = offline(recorded, tmp_path, *IMITATE, best=best)
    groups, _ = plan_offline(asked, tmp_path)
    assert {len(group) for group in groups.groups} == {left}
    assert best.least is None or all(each.reward >= best.least for group in groups.groups for each in group)


def test_a_greedy_episode_is_not_among_the_best_and_stays(recorded: RunFolder):
    (first, *others) = [each for each in KeptSteps.of(recorded).batches[0].episodes if each.group_id == 0]
    greedy = msgspec.structs.replace(first, greedy=True, reward=9.0)
    (kept, best) = Best(1).of((greedy, *others))
    assert (kept, best.reward) == (greedy, 1.0)
    assert Best(1, 2.0).of((greedy, *others)) == (), "a greedy episode alone trains nothing"


def test_filters_look_at_each_reward_that_is_compared_as_in_a_launch(recorded: RunFolder, tmp_path: Path):
    recipe = offline(recorded, tmp_path, "batch.groups_per_step=1", "buffer.filters=[{kind: zero_variance}]").recipe
    group = [each for each in KeptSteps.of(recorded).batches[0].episodes if each.group_id == 0]
    equal, spread = (
        tuple(
            msgspec.structs.replace(each, reward=1.0, rewards=(part, 1 - part)) for each, part in zip(group, parts, strict=True)
        )
        for parts in ((0.5, 0.5, 0.5, 0.5), (0.0, 1.0, 0.5, 0.5))
    )
    assert Recorded((equal, spread), {}).chosen(recipe, Best()).groups == (spread,)


def test_what_other_hosts_have_is_refused_before_anything_is_trained(recorded: RunFolder, tmp_path: Path):
    copy = Path(shutil.copytree(recorded.path, tmp_path / recorded.path.name))
    shutil.rmtree(copy / "buffer" / "payload")
    with pytest.raises(RecipeError, match=r"--from: .* is not there, and the payload of 48 episodes is needed from it"):
        plan_offline(msgspec.structs.replace(offline(recorded, tmp_path), runs=(copy,)), tmp_path)


@pytest.mark.parametrize("further", ["", "trajectories/kept.parquet", "link.parquet"], ids=["a run", "its file", "a link to it"])
def test_episodes_that_would_be_trained_twice_are_refused(recorded: RunFolder, tmp_path: Path, further: str):
    (tmp_path / "link.parquet").symlink_to(recorded.path / "trajectories" / "kept.parquet")
    where = tmp_path if further.startswith("link") else recorded.path
    asked = msgspec.structs.replace(offline(recorded, tmp_path), runs=(recorded.path, where / further))
    with pytest.raises(RecipeError, match="would be trained twice"):
        plan_offline(asked, tmp_path)


def relaunched(recorded: RunFolder, parent: Path, *recipes: Recipe) -> RunFolder:
    """A copy of a run whose steps these recipes have trained, in equal shares."""
    copy = RunFolder(Path(shutil.copytree(recorded.path, parent / recorded.path.name)))
    steps = [line for line in StepLog(copy.steps).read() if isinstance(line, StepRecord)]
    copy.steps.unlink()
    share = len(steps) // len(recipes)
    for number, recipe in enumerate(recipes):
        for line in (Launched(number * share, resolved_yaml(recipe)), *steps[number * share : (number + 1) * share]):
            StepLog(copy.steps).append(line)
    return copy


def test_every_recipe_that_a_run_has_had_is_looked_at(recorded: RunFolder, tmp_path: Path):
    asked = offline(recorded, tmp_path)
    colder = msgspec.structs.replace(asked.recipe, sampling=msgspec.structs.replace(asked.recipe.sampling, temperature=0.5))
    copy = relaunched(recorded, tmp_path, colder, asked.recipe)
    plan_offline(msgspec.structs.replace(asked, runs=(copy.path,), first=4), tmp_path)
    with pytest.raises(RecipeError, match=r"is 1, and .* sampled at 0.5"):
        plan_offline(msgspec.structs.replace(asked, runs=(copy.path,), first=3), tmp_path)


def test_models_of_one_name_that_are_not_the_same_are_told_apart(recorded: RunFolder, tmp_path: Path, monkeypatch):
    tiny, named = (small_recipe(Path(name), tmp_path) for name in ("tiny", "mine"))
    run = relaunched(recorded, tmp_path, tiny).path
    plan_offline(Offline(recipe=tiny, runs=(run,)), tmp_path)
    with pytest.raises(RecipeError, match=r"model.path: .* its environment and its seed, which was 0 there"):
        plan_offline(Offline(recipe=msgspec.structs.replace(tiny, seed=1), runs=(run,)), tmp_path)
    for place in ("here", "there"):
        (tmp_path / place / "mine").mkdir(parents=True)
        (tmp_path / place / "mine" / "tokenizer.json").write_text(place)
    monkeypatch.chdir(tmp_path / "here")
    folder = relaunched(recorded, tmp_path / "there", named)
    (folder.path / "launched-in").write_text(str(tmp_path / "there"))
    asked = Offline(recipe=named, runs=(folder.path,))
    with pytest.raises(RecipeError, match=r"model.path: is another model than that of .* \(mine\), and no equal"):
        plan_offline(asked, tmp_path)
    Path("mine", "tokenizer.json").write_text("there")
    plan_offline(asked, tmp_path)


@pytest.mark.parametrize(
    ("overrides", "options", "problem"),
    [
        (["sampling.temperature=0.7"], {}, "sampling.temperature: is 0.7, and .* sampled at 1"),
        ([], {"first": 9}, "keeps no batch of steps from 9 on; steps 1 to 6 can be replayed"),
        (["batch.groups_per_step=13", "steps=1"], {}, "12 of 12 recorded groups are left, and a step trains 13"),
        (IMITATE, {"best": Best(None, 2.0)}, "0 of 12 recorded groups are left"),
        (["model.path=tiny"], {}, "model.path: is another model than that of"),
    ],
)
def test_what_cannot_be_trained_rightly_is_refused(recorded, tmp_path, overrides, options, problem):
    with pytest.raises(RecipeError, match=problem):
        plan_offline(offline(recorded, tmp_path, *overrides, **options), tmp_path)


def test_no_correction_and_imitation_of_failures_are_told(recorded: RunFolder, tmp_path: Path):
    plain = ["algorithm.loss={kind: ppo_clip}", "algorithm.correction={anchor: proximal_recomputed, weight: none}"]
    _, remarks = plan_offline(offline(recorded, tmp_path, *plain, "buffer.max_staleness=0"), tmp_path)
    assert "nothing corrects for other policies having sampled the episodes" in remarks[0]
    _, remarks = plan_offline(offline(recorded, tmp_path, *IMITATE), tmp_path)
    assert "--least-reward leaves these out" in remarks[0]


def test_imitating_good_episodes_makes_them_likelier(recorded: RunFolder, tmp_path: Path):
    asked = offline(recorded, tmp_path, *IMITATE, "batch.groups_per_step=12", "steps=6", "evaluation.every=4", best=Best(1, 1.0))
    groups, _ = plan_offline(asked, tmp_path)
    folder = RunFolder.create(asked.recipe)
    with LiveView(Console(file=io.StringIO()), "offline") as view:
        assert train_offline(asked, groups, folder, view) == [4, 6]
    assert sorted(checkpoints.versions(folder.checkpoints)) == [4, 6]
    steps = RecordedSteps(StepLog(folder.steps).read())
    losses = [steps[step].readings["loss/policy"] for step in range(1, 7)]
    assert losses == sorted(losses, reverse=True), "each step trains all of them"
    assert "cross_entropy" in steps.recipe_of(6)
    assert (Summary.read(folder.summary).status, Summary.read(folder.summary).steps) == (Status.COMPLETED, 6)
    # Killed after the checkpoint of step 4: the same steps again, to the bit.
    last = steps[6]
    shutil.rmtree(checkpoints.path_of(folder.checkpoints, PolicyVersion(6)))
    with LiveView(Console(file=io.StringIO()), "offline") as view:
        assert train_offline(asked, groups, folder, view) == [4, 6]
    again = RecordedSteps(StepLog(folder.steps).read())[6]
    assert (again.fingerprint, again.readings["loss/policy"]) == (last.fingerprint, last.readings["loss/policy"])
    (run,) = MlflowClient(f"sqlite:///{folder.database}").search_runs(["1"])
    assert run.data.metrics["loss/policy"] == last.readings["loss/policy"]


def test_one_process_trains_in_a_folder_at_a_time(recorded: RunFolder, tmp_path: Path):
    asked = offline(recorded, tmp_path)
    groups, _ = plan_offline(asked, tmp_path)
    folder = RunFolder.create(asked.recipe)
    view = LiveView(Console(file=io.StringIO()), "offline")
    with folder.driven(), view, pytest.raises(RecipeError, match="is still running"):
        train_offline(asked, groups, folder, view)
    assert not folder.steps.exists()


def test_changes_after_the_runs_are_taken_as_they_were_written():
    note = "a/./b/" + 300 * "x"  # longer than any file's name
    words = ["--from", "runs/one", "tracking.uri=sqlite:////a/b.db", f"environment.options.note={note}", "runs/other"]
    asked, *_ = _asked(command_line("train-offline").parse_args(["train-offline", "quickstart", *words]))
    assert asked.runs == (Path("runs/one"), Path("runs/other"))
    assert (asked.recipe.tracking.uri, asked.recipe.environment.options["note"]) == ("sqlite:////a/b.db", note)


@pytest.mark.parametrize(
    "further",
    ["quickstart", "steps=9", "--from=runs/one", "--steps=1:2", "--top-reward=1", "--least-reward=0"],
)
def test_nothing_that_would_be_ignored_is_taken_with_a_resume(further: str):
    with pytest.raises(RecipeError, match="goes on with what the run was begun with; leave all else out"):
        _asked(command_line("train-offline").parse_args(["train-offline", "--resume", "runs/one", further]))


def test_what_a_run_was_begun_with_is_kept_and_other_episodes_are_refused(recorded: RunFolder, tmp_path: Path):
    groups, _ = plan_offline(offline(recorded, tmp_path), tmp_path)
    folder = RunFolder.create(offline(recorded, tmp_path).recipe)
    with pytest.raises(RecipeError, match="was not begun by train-offline"):
        kept_request(folder)
    asked = OfflineRequest(runs=("a",), first=1, last=None, count=None, least=0.5, episodes=proof_of(groups))
    asked.keep(folder)
    assert kept_request(folder) == asked
    asked.check_same(groups)
    with pytest.raises(RecipeError, match="no longer hold the episodes"):
        asked.check_same(Recorded(groups.groups[1:], groups.payload))


def test_a_renamed_episode_is_the_same_but_for_its_name_and_versions(recorded: RunFolder, tmp_path: Path):
    asked = offline(recorded, tmp_path)
    groups, _ = plan_offline(asked, tmp_path)
    batch = next(iter(groups.batches(asked.recipe)))
    (plain,) = episodes_of(batch, [batch.rows[0].name], groups.payload).values()
    renamed = as_of(plain, batch.episodes[0], batch.version)
    back = msgspec.structs.replace(renamed, group_id=plain.group_id, sample_index=plain.sample_index)
    assert back.trajectories[0].logprobs.tolist() == plain.trajectories[0].logprobs.tolist()
    assert msgspec.structs.replace(back, trajectories=()) == msgspec.structs.replace(plain, trajectories=())
