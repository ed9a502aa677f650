"""Steps computed again: to the bit in the run's own layout, closely in another."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from learner_samples import edited, make_model
from made_run import make_run, small_recipe
from ranks import run_ranks
from replay_side import answers_of

from asyncrl.core.episode import Episode
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.teacher import TeacherConfig
from asyncrl.replay.comparison import Comparison, Verdict, compare
from asyncrl.replay.job import Job, Loaded, Replayed, record_of
from asyncrl.replay.kept_steps import KeptSteps
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.folder.step_log import StepRecord

EXPERTS = ["learner.data_parallel=2", "learner.expert_parallel=2"]
ADAPTERS = ["learner.lora={rank: 4}"]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("dense"))


def again(folder: RunFolder, recipe: Recipe, first: int, last: int, tmp_path: Path, *, exact: bool = True) -> list[Comparison]:
    """Replay steps of a run on forked ranks, and compare each with its record."""
    job = job_of(folder, recipe, first, last, tmp_path)
    of_ranks = run_ranks(answers_of, job, **msgspec.to_builtins(recipe.learner.layout))
    found, kept = [], KeptSteps.of(folder)
    for parts in zip(*([each for each in said if isinstance(each, Replayed)] for said in of_ranks), strict=True):
        made = record_of(parts)
        if made.step >= first:
            found.append(compare(kept.record[made.step], made, exact=exact, dtypes={recipe.learner.dtype}))
    return found


def job_of(folder: RunFolder, recipe: Recipe, first: int, last: int, tmp_path: Path, **keys: int) -> Job:
    kept = KeptSteps.of(folder)
    start = kept.start_of(first, last)
    return Job(
        recipe=recipe,
        model_path=Path(recipe.model.path),
        checkpoint=start.checkpoint,
        batches=tuple(kept.batches[version] for version in range(start.version, last)),
        first=first,
        payload=kept.payload,
        threads=1,
        meeting=str(tmp_path / "meeting"),
        code=tmp_path,
        beside=tmp_path,
        **keys,
    )


@pytest.mark.parametrize(("first", "last", "began"), [(1, 6, 0), (4, 5, 2), (6, 6, 4)])
def test_a_run_is_the_same_again_from_the_model_and_from_each_checkpoint(dense, tmp_path, first, last, began):
    recipe = small_recipe(dense, tmp_path)
    folder = make_run(recipe)
    assert KeptSteps.of(folder).start_of(first, last).version == began
    compared = again(folder, recipe, first, last, tmp_path)
    assert len(compared) == last - first + 1
    assert all(each.is_equal for each in compared)


@pytest.mark.parametrize("killed", [3, 4])
def test_steps_on_both_sides_of_a_kill_are_the_same_again(dense: Path, tmp_path: Path, killed: int):
    recipe = small_recipe(dense, tmp_path)
    folder = make_run(recipe, killed=killed)
    assert all(each.is_equal for each in again(folder, recipe, 1, 6, tmp_path))


@pytest.mark.parametrize(("architecture", "overrides"), [("qwen3_moe", EXPERTS), ("qwen3", ADAPTERS)])
def test_experts_shared_out_and_adapters_are_the_same_again(tmp_path: Path, architecture: str, overrides: list[str]):
    recipe = small_recipe(make_model(tmp_path / "model", architecture), tmp_path, *overrides)
    folder = make_run(recipe)
    assert all(each.is_equal for each in again(folder, recipe, 3, 6, tmp_path))


def test_two_ranks_on_one_are_close_but_not_the_same(dense: Path, tmp_path: Path):
    recipe = small_recipe(dense, tmp_path, "learner.data_parallel=2")
    folder = make_run(recipe)
    one = msgspec.structs.replace(recipe, learner=msgspec.structs.replace(recipe.learner, data_parallel=1))
    compared = again(folder, one, 3, 6, tmp_path, exact=False)
    assert all(each.holds for each in compared)
    assert Verdict.DIFFERENT in {each.weights for each in compared}, "the ranks' gradients are added in another order"


@pytest.mark.parametrize(
    ("dtypes", "verdict"),
    [({"float32"}, Verdict.DIFFERENT), ({"bfloat16"}, Verdict.CLOSE), ({"bfloat16", "float32"}, Verdict.CLOSE)],
)
def test_what_is_close_is_said_by_the_coarser_type(dtypes: set[str], verdict: Verdict):
    recorded, made = (StepRecord(1, {"learner/grad_norm": norm}, None) for norm in (1.0, 1.05))
    assert compare(recorded, made, exact=False, dtypes=dtypes).grad_norm is verdict


def test_a_step_that_diverges_is_looked_at_all_the_same(dense: Path, tmp_path: Path):
    """The teacher's log-probability of the tokens of one row is so low that the gradient has no finite norm."""

    def spoilt(step: int, episode: Episode) -> Episode:
        low = -3e38 if step == 5 and episode.sample_index == 2 and episode.group_id % 2 else -2.0
        return edited(episode, teacher_logprobs=np.full(episode.trajectories[0].loss_mask.sum(), low, np.float32))

    recipe = small_recipe(dense, tmp_path)
    folder = make_run(recipe, spoilt)
    taught = msgspec.structs.replace(recipe.algorithm, teacher=TeacherConfig(path="teacher"))
    job = job_of(folder, msgspec.structs.replace(recipe, algorithm=taught), 5, 6, tmp_path, top=3)
    ((loaded, diverged),) = run_ranks(answers_of, job, **msgspec.to_builtins(recipe.learner.layout))
    assert isinstance(loaded, Loaded)
    assert "the gradient norm of the policy step that trains version 4 is nan" in diverged.diverged
    assert (diverged.step, diverged.readings) == (5, {})
    assert diverged.rows[0].name[1] == 2
    assert diverged.rows[0].name[0] % 2
    assert {token.row for token in diverged.tokens} == {diverged.rows[0].name}


def test_what_is_no_longer_there_is_refused_by_name(dense: Path, tmp_path: Path):
    folder = make_run(small_recipe(dense, tmp_path))
    kept = KeptSteps.of(folder)
    with pytest.raises(RecipeError, match=r"has trained 6 steps, so there is no step 7; steps 1 to 6 can be replayed"):
        kept.start_of(7, 7)
    with pytest.raises(RecipeError, match=r"payload of 48 episodes is needed .* copy that folder here"):
        msgspec.structs.replace(kept, payload={0: tmp_path / "elsewhere"}).start_of(1, 6)
    (file,) = kept.payload[0].iterdir()
    os.truncate(file, file.stat().st_size // 2)
    kept.start_of(1, 2)
    with pytest.raises(RecipeError, match=rf"--step: {file} has [\d,]+ bytes, and [\d,]+ are needed; copy it here again"):
        kept.start_of(1, 6)
    without = msgspec.structs.replace(kept, batches={v: b for v, b in kept.batches.items() if v > 1})
    with pytest.raises(RecipeError, match=r"the batch of step 1 to 2 is no longer kept .* steps 3 to 6 can be replayed"):
        without.start_of(1, 2)
    later = msgspec.structs.replace(without, starts=kept.starts[:1])
    with pytest.raises(RecipeError, match=r"of version 0, and the batch of step 1 to 2 is no longer kept; none"):
        later.start_of(4, 4)
    folder.recipe.write_text(folder.recipe.read_text().replace("learner:", "learner:\n  old_key: 3", 1))
    with pytest.raises(RecipeError, match=r"learner\.old_key: unknown key") as caught:
        KeptSteps.of(folder)
    assert "if another version of asyncrl made the run" in str(caught.value.__notes__)
