"""Rates are fitted to the folder of a run: what its steps took, and the episodes that it kept."""

import shlex
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.cli.main import main
from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.step_moments import PAIRS, StepMoments, add_step
from asyncrl.core.measures.time_split import GeneratorTime, LearnerTime, TimeSplit
from asyncrl.core.recipe.schema import Recipe
from asyncrl.episodes.reader import Choice, EpisodeReader
from asyncrl.episodes.schema import SCHEMA
from asyncrl.planning import kept_episodes
from asyncrl.planning.prediction import predict
from asyncrl.planning.rate_fit import fit_run
from asyncrl.planning.similar_runs import alike, expected
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.measure_file import StepMeasure, append, read
from asyncrl.run.recipe.compose import compose
from asyncrl.simulation.rates import Rate

STEP, REQUEST, PROMPT = 4e-3, 5e-5, 1e-5
STEPS, TOKENS, ROWS = 12, 5000, 128


def measure(step: int, seed: int = 0) -> StepMeasure:
    """A training step of 2 s on two cores: half a second of the learner's processor time, which took a second."""
    rng = np.random.default_rng((step, seed))
    sums = [0.0] * len(PAIRS)
    for _ in range(100):
        prompts, sampled = int(rng.integers(0, 300)), int(rng.integers(1, 100))
        cpu = STEP + REQUEST * sampled + PROMPT * prompts
        add_step(sums, (1, prompts, sampled, 60 * sampled, 2 * cpu, cpu))
    moments = StepMoments.of(sums)
    generators = GeneratorTime(
        sampling=1.9,
        tickets=0.1,
        requests=150.0,
        episodes=164.0,
        engine_cpu=moments.total("cpu"),
        front_end_cpu=0.5 * moments.total("cpu"),
        steps=moments,
    )
    learner = LearnerTime(
        waiting=0.8, training=1.0, data=0.1, forward=0.3, backward=0.5, optimizer=0.1, writing=0.05, cpu=0.5, delivering=0.05
    )
    time = TimeSplit(
        seconds=2.0,
        learner=learner,
        generators=generators,
        slots=2.0,
        cores=1.6,
        trajectories=ROWS,
        trained_tokens=8000,
        generated_tokens=2500,
    )
    return StepMeasure(
        step=step,
        time=time,
        rows=ROWS,
        computed_tokens=TOKENS,
        delivery_s=0.3,
        pause_s=0.1,
        staleness_mean=1.0,
        staleness_max=2,
        masked=0,
        filtered=1,
        complete=16,
        depth=1,
        engines=1,
        cores=2,
        device="cpu",
    )


def row(step: int, group: int, sample: int, turns: int) -> dict[str, object]:
    """A kept episode: a prompt of 40 tokens, turns of 10, and answers of 5, of which the last turn has none."""
    spans = [
        {"start": 40 + 15 * turn, "end": 50 + 15 * turn, "environment_s": 0.02, "generating_s": 0.1} for turn in range(turns)
    ]
    return {
        "kind": "train",
        "step": step,
        "version": step - 1,
        "task_id": f"task-{group}",
        "group_id": group,
        "sample_index": sample,
        "attempt": 0,
        "part": 0,
        "shared": 0,
        "reset_s": 0.01,
        "scoring_s": 0.0,
        "turns": spans,
        "token_ids": [7] * 20 + [group] * 20 + [9] * (15 * turns - 5),
    }


def made_run(folder: Path, steps: int = STEPS) -> RunFolder:
    recipe: Recipe = compose("quickstart", [f"run_dir={folder}", "steps=40", "generators.count=1", "buffer.pipeline_depth=1"])
    run = RunFolder.create(recipe)
    run.trajectories.mkdir()
    for step in range(1, steps + 1):
        append(run.measures, measure(step))
        rows = [row(step, 4 * step + group, sample, 1 + (group + sample) % 3) for group in range(4) for sample in range(4)]
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), run.trajectories / f"train-{step:06}-0.parquet")
    return run


def test_rates_are_those_that_the_measures_were_made_of(tmp_path: Path):
    basis = fit_run(made_run(tmp_path).path)
    assert basis.rates is not None
    engine, learner, publication, machine = (
        getattr(basis.rates, name) for name in ("engine", "learner", "publication", "machine")
    )
    assert [engine.step.value, engine.prompt_token.value] == pytest.approx([STEP, PROMPT], rel=1e-3)
    assert engine.request.value + 60 * engine.context_token.value == pytest.approx(REQUEST, rel=1e-3)
    assert engine.cores.value == pytest.approx(1.5)
    assert learner.token.value == pytest.approx(0.5 * 0.8 / TOKENS), "processor time, of which there was half as much as time"
    assert (learner.row.value, learner.step.value) == pytest.approx((0.5 * 0.1 / ROWS, 0.5 * 0.1))
    assert (publication.write.value, publication.move.value, publication.pause.value) == pytest.approx((0.05, 0.2, 0.1))
    assert (machine.cores.value, basis.rates.failures.filtered.value) == (2, pytest.approx(1 / 16))
    ours = 1.5 * measure(3).time.generators.engine_cpu + 0.5
    assert machine.others.value == pytest.approx((2 * 1.6 - ours) / 2, rel=0.1)


def test_episodes_are_those_that_were_kept(tmp_path: Path):
    training = fit_run(made_run(tmp_path).path).training
    assert (training.count, training.groups, training.tasks) == (16 * STEPS, 4 * STEPS, 4 * STEPS)
    assert training.episodes.preamble == 20
    assert training.episodes.correlated
    assert {len(episode.turns) for episode in training.episodes.all} == {1, 2, 3}
    assert {episode.length for episode in training.episodes.all} == {50, 65, 80}
    assert training.episodes.all[0].prompt == 40
    assert (training.environment_s, training.reset_s) == pytest.approx((0.02, 0.01))


def test_of_many_episodes_the_newest_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_episodes, "MOST_EPISODES", 40)  # of 16 a step
    read_rows: list[int] = []
    table = EpisodeReader.table

    def counted(reader: EpisodeReader, choice: Choice, columns: list[str]) -> pa.Table:
        found = table(reader, choice, columns)
        read_rows.extend([len(found)] * ("token_ids" in columns))
        return found

    monkeypatch.setattr(EpisodeReader, "table", counted)
    training = fit_run(made_run(tmp_path).path).training
    assert (training.count, training.tasks) == (40, 12)
    assert read_rows[0] == 48  # three whole steps


def test_a_prediction_says_what_it_extrapolates(tmp_path: Path):
    basis = fit_run(made_run(tmp_path).path)
    assert basis.recipe is not None
    same = predict(basis.recipe, basis, seeds=2, steps=6)
    assert same.trajectories_per_s.low < same.trajectories_per_s.mean < same.trajectories_per_s.high
    assert not any("section" in note or "learner." in note for note in same.notes)
    other = compose(
        "quickstart", ["generators.count=1", "learner.data_parallel=2", "sampling.max_turn_tokens=32", "learner.dtype=bfloat16"]
    )
    notes = "\n".join(predict(other, basis, seeds=1, steps=4).notes)
    assert "2 data-parallel ranks were foreseen from 1" in notes
    assert "section sampling" in notes
    assert "one modelled run" in notes


def test_an_interval_is_the_wider_the_fewer_steps_rates_were_fitted_to(tmp_path: Path):
    basis = fit_run(made_run(tmp_path).path)
    assert basis.recipe is not None
    assert basis.rates is not None
    move = msgspec.structs.replace(basis.rates.publication.move, error=0.5)
    publication = msgspec.structs.replace(basis.rates.publication, move=move)
    basis = msgspec.structs.replace(basis, rates=msgspec.structs.replace(basis.rates, publication=publication))
    for count in (4, 9):
        few = msgspec.structs.replace(basis, measured=basis.measured[:1] * count)
        found = predict(basis.recipe, few, seeds=1, steps=4)
        speed = found.trajectories_per_s
        assert speed.high - speed.mean == pytest.approx(1.96 * 0.5 / count**0.5 * speed.mean)
        assert max(found.idle_generators.high, found.idle_learner.high) <= 1


@pytest.mark.parametrize(("tokens", "told"), [(0.0, True), (1e6, False)])
def test_a_prediction_says_that_it_knows_no_limit_of_the_cache(tmp_path: Path, tokens: float, told: bool):
    basis = fit_run(made_run(tmp_path).path)
    assert basis.rates is not None
    assert basis.recipe is not None
    engine = msgspec.structs.replace(basis.rates.engine, cache_tokens=Rate(tokens, "given"))
    basis = msgspec.structs.replace(basis, rates=msgspec.structs.replace(basis.rates, engine=engine))
    notes = predict(basis.recipe, basis, seeds=2, steps=4).notes
    assert any("no limit was modelled" in note for note in notes) is told


def test_a_dry_run_finds_a_run_of_the_same_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    keys = [f"run_dir={tmp_path}", "generators.count=1", "buffer.pipeline_depth=2"]
    recipe = compose("quickstart", keys)
    asked = ["my recipe.yaml", *keys]
    assert expected(recipe, asked) is None
    run = made_run(tmp_path)
    said = expected(recipe, asked)
    assert said is not None
    assert run.path.name in said
    assert "trajectories/s" in said
    advice = shlex.split(said.split("`")[1])
    assert advice == ["asyncrl", "plan", *asked, "--from", str(run.path)]
    assert main([advice[1], "quickstart", *advice[3:], "--seeds=1", "--steps=4"]) == 0
    assert expected(compose("quickstart", [*keys, "environment.max_turns=3"]), asked) is None
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    assert expected(recipe, asked) is None, "it ran on another machine"


def test_a_run_that_is_removed_while_runs_are_looked_for_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made_run(tmp_path)
    gone = tmp_path / "gone" / "measures.jsonl"
    glob = Path.glob
    found = [*tmp_path.glob("*/measures.jsonl"), gone]
    monkeypatch.setattr(Path, "glob", lambda path, pattern: found if path == tmp_path else glob(path, pattern))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    recipe = compose("quickstart", [f"run_dir={tmp_path}", "generators.count=1"])
    assert len(list(alike(recipe))) == 1


def test_a_run_of_few_steps_is_refused_and_a_torn_line_left_out(tmp_path: Path):
    run = made_run(tmp_path, steps=4)
    with pytest.raises(RecipeError, match="has 2 training steps"):
        fit_run(run.path)
    with run.measures.open("ab") as file:
        file.write(msgspec.json.encode(measure(5))[:100])
    append(run.measures.with_name("again"), measure(1))
    assert [each.step for each in read(run.measures)] == [1, 2, 3, 4]
    append(run.measures, measure(6))
    assert [each.step for each in read(run.measures)] == [1, 2, 3, 4, 6]
    with pytest.raises(RecipeError, match="earlier versions"):
        read(run.path / "nothing")


def test_a_step_that_was_done_again_counts_as_it_was_at_first(tmp_path: Path):
    file = tmp_path / "measures.jsonl"
    for seed, step in ((0, 1), (0, 2), (1, 2)):
        append(file, measure(step, seed))
    assert read(file) == [measure(1), measure(2)]


def test_steps_on_another_machine_than_the_last_are_left_out_and_named(tmp_path: Path):
    run = made_run(tmp_path, steps=6)
    for step in range(7, 16):
        append(run.measures, msgspec.structs.replace(measure(step), cores=8))
    basis = fit_run(run.path)
    assert [step.step for step in basis.measured] == list(range(9, 16))
    assert basis.rates is not None
    assert basis.rates.machine.cores.value == 8
    (note,) = [note for note in predict(basis.recipe, basis, seeds=1, steps=4).notes if "another machine" in note]
    assert note.startswith(f"6 training steps of run {run.path.name} ran on another machine than the last (cpu with 8 cores)")


def test_too_few_steps_since_a_run_went_to_another_machine_are_told(tmp_path: Path):
    run = made_run(tmp_path, steps=12)
    append(run.measures, msgspec.structs.replace(measure(13), device="NVIDIA H100"))
    with pytest.raises(RecipeError, match=r"0 training steps .*12 training steps of run .* on another machine .*NVIDIA H100"):
        fit_run(run.path)
