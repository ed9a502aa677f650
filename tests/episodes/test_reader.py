import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_episodes import row, write

from asyncrl.core.errors import RecipeError
from asyncrl.episodes.measures import Measure
from asyncrl.episodes.read_trajectory import mean
from asyncrl.episodes.reader import Choice, EpisodeReader, EpisodesUnreadable, no_such_episodes
from asyncrl.episodes.schema import SCHEMA, Kind, TokenFate

OF_EVALUATION = Kind.EVALUATION


@pytest.fixture
def reader(tmp_path):
    """Steps 1 to 3 in files of their own, two episodes each, and an evaluation of version 2."""
    for step in (3, 1, 2):
        rows = [row(step, turns=1, sample_index=1, reward=0.0, gap=step / 10), row(step, turns=step, source="other")]
        folder = write(tmp_path, rows, f"rank-0-{step}")
    write(tmp_path, [row(2, kind=OF_EVALUATION, task_id="held-out", version=2)], "a")
    return EpisodeReader(folder)


def order(reader, *arguments):
    found = [(e.kind, e.step or e.version, e.sample_index) for e in reader.read(reader.places(*arguments))]
    return [(step, index) for kind, step, index in found if kind is Kind.TRAIN]


def test_tables_hold_the_chosen_rows_and_columns(reader):
    table = reader.table(Choice(kind=Kind.TRAIN, step=2), ["reward", "task_id"])
    assert table.to_pylist() == [{"reward": 0.0, "task_id": "train-2"}, {"reward": 1.0, "task_id": "train-2"}]
    assert reader.table(Choice(source="other"), ["step"])["step"].to_pylist() == [1, 2, 3]
    assert reader.table(Choice(step=2), ["kind"])["kind"].to_pylist() == ["evaluation", "train", "train"]
    assert reader.table().schema.equals(SCHEMA)
    assert sum(batch.num_rows for batch in reader.batches()) == 7


def test_episodes_come_in_the_order_of_training(reader):
    assert order(reader) == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert [e.kind for e in reader.read(reader.places())][-1] is OF_EVALUATION


def test_an_episode_holds_what_was_written(reader):
    (episode,) = reader.read(reader.places(Choice(kind=Kind.TRAIN, step=3, source="other")))
    assert (episode.task_id, episode.reward, episode.metrics) == ("train-3", 1.0, {"tool_calls": 3.0})
    assert [turn.calls[0].tool for turn in episode.turns] == ["add", "add", "add"]
    assert episode.fate_counts() == {TokenFate.GIVEN: 12, TokenFate.TRAINED: 12}
    assert episode.staleness() == [1] * 12
    assert episode.gaps() == pytest.approx([0.01] * 12, abs=1e-6)
    assert episode.seconds == pytest.approx(0.3 + 3 * 0.5 + 3 * 0.3)


@pytest.mark.parametrize(
    ("by", "first"), [(Measure.REWARD, (3, 1)), (Measure.GAP, (3, 1)), (Measure.LENGTH, (3, 0)), (Measure.STALENESS, (3, 0))]
)
def test_they_are_sorted_by_a_measure_and_the_newest_first_among_equals(reader, by, first):
    assert order(reader, Choice(kind=Kind.TRAIN), by)[0] == first
    assert order(reader, Choice(kind=Kind.TRAIN), by, 2) == order(reader, Choice(kind=Kind.TRAIN), by)[:2]


def test_an_evaluation_has_no_gap_and_comes_last(reader):
    places = reader.places(Choice(), Measure.GAP)
    assert math.isnan(places["measure"].to_pylist()[-1] or math.nan)
    assert places["kind"].to_pylist()[-1] == "evaluation"


def test_sorting_reads_each_file_a_few_times_at_most(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for step in range(1, 21):
        rows = [row(step, turns=1, sample_index=index, reward=rng.random()) for index in range(64)]
        folder = write(tmp_path, rows, f"train-{step}")
    reader, reads = EpisodeReader(folder), Counter()
    of_file = EpisodeReader._rows_of_file

    def counted(self, file, columns):
        reads[file] += 1
        return of_file(self, file, columns)

    monkeypatch.setattr(EpisodeReader, "_rows_of_file", counted)
    places = reader.places(by=Measure.REWARD)
    found = [(episode.step, episode.sample_index) for episode in reader.read(places)]
    assert found == list(zip(places["step"].to_pylist(), places["sample_index"].to_pylist(), strict=True))
    assert len(reads) == 20
    assert max(reads.values()) <= 3


def test_what_is_read_ahead_fits_the_memory_it_may_take(reader, monkeypatch):
    monkeypatch.setattr("asyncrl.episodes.reader._FIRST_PART", 1)
    everything = [(e.kind, e.task_id, e.sample_index) for e in reader.read(reader.places())]
    monkeypatch.setattr("asyncrl.episodes.reader._HELD_BYTES", 1)
    assert [(e.kind, e.task_id, e.sample_index) for e in reader.read(reader.places())] == everything


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 5), st.floats(0, 1), st.booleans(), st.integers(1, 3)),
        min_size=1,
        max_size=12,
    )
)
def test_measures_of_many_rows_are_those_of_each_episode(tmp_path_factory, drawn):
    rows = [
        row(step, turns=turns, sampled_by=min(by, step), gap=gap, sample_index=i, kind=Kind.TRAIN if train else Kind.EVALUATION)
        for i, (step, by, gap, train, turns) in enumerate(drawn)
    ]
    folder = tmp_path_factory.mktemp("run")
    half = len(rows) // 2
    write(folder, rows[:half], "1")
    reader = EpisodeReader(write(folder, rows[half:], "2"))
    of_one = {
        Measure.GAP: lambda e: mean(e.gaps()),
        Measure.STALENESS: lambda e: mean(e.staleness()),
        Measure.LENGTH: lambda e: len(e.token_ids),
        Measure.REWARD: lambda e: e.reward,
    }
    for by, expected in of_one.items():
        places = reader.places(by=by)
        values = [math.nan if value is None else value for value in places["measure"].to_pylist()]
        np.testing.assert_allclose(values, [expected(e) for e in reader.read(places)], rtol=1e-6, equal_nan=True)
        finite = [value for value in values if not math.isnan(value)]
        assert finite == sorted(finite, reverse=by is not Measure.REWARD)


def test_steps_are_told_by_kind(reader):
    assert reader.steps(Kind.TRAIN) == [1, 2, 3]
    assert reader.steps(Kind.EVALUATION) == [2]


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (Choice(kind=Kind.TRAIN, step=9), "no episodes of training step 9 are kept; there are: 1 to 3"),
        (Choice(kind=Kind.EVALUATION, step=9), "no episodes of evaluation of version 9 are kept; there are: 2"),
        (Choice(kind=Kind.TRAIN, task="x"), "no episodes with task_id 'x' are kept; there are: 'train-1', 'train-2', 'train-3'"),
        (
            Choice(kind=Kind.TRAIN, step=2, source="x"),
            "with source 'x' are kept in training step 2; there are: 'generated', 'other'",
        ),
    ],
)
def test_a_choice_that_nothing_fits_is_told_what_would(reader, choice, told):
    assert all(len(reader.places(choice, by)) == 0 for by in (None, *Measure))
    assert told in str(no_such_episodes(reader, choice))


def test_only_evaluations_are_told(tmp_path):
    reader = EpisodeReader(write(tmp_path, [row(kind=OF_EVALUATION)]))
    assert "--evaluation" in str(no_such_episodes(reader, Choice(kind=Kind.TRAIN)))


def test_where_nothing_is_kept_the_key_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"tracking\.trajectories"):
        EpisodeReader(tmp_path / "trajectories")


def test_a_draft_is_not_read_and_a_damaged_file_is_named(tmp_path):
    folder = write(tmp_path, [row()])
    (folder / ".draft.parquet").write_bytes(b"half")
    assert len(EpisodeReader(folder).table()) == 1
    (folder / "broken.parquet").write_bytes(b"half")
    with pytest.raises(EpisodesUnreadable, match=r"broken\.parquet"):
        EpisodeReader(folder).places()


def test_a_row_that_is_no_episode_is_named(tmp_path):
    reader = EpisodeReader(write(tmp_path, [row(), row(stop_reason=None)]))
    with pytest.raises(EpisodesUnreadable, match=r"row 1 of .*stop_reason"):
        list(reader.read(reader.places(Choice(), Measure.LENGTH)))


@pytest.mark.parametrize("column", ["metrics", "reward", "turns", "kind"])
def test_a_file_without_a_column_is_named_and_so_is_the_column(tmp_path, column):
    folder = write(tmp_path, [row(1)], "whole")
    lacking = pq.read_table(write(tmp_path, [row(2)], "lacking") / "lacking.parquet").drop_columns([column])
    pq.write_table(lacking, folder / "lacking.parquet")
    told = rf"{folder}/lacking\.parquet lacks the column {column}, so it holds no kept episodes; move it away"
    with pytest.raises(EpisodesUnreadable, match=told):
        EpisodeReader(folder)


@pytest.mark.parametrize("column", ["metrics", "reward", "turns", "versions", "turn_rewards", "began"])
def test_a_column_of_another_kind_is_told(tmp_path, column):
    file = write(tmp_path, [row(1)]) / "some.parquet"
    table = pq.read_table(file)
    pq.write_table(table.set_column(table.schema.get_field_index(column), column, pa.array([["x"]])), file)
    with pytest.raises(EpisodesUnreadable, match=rf"column {column} of {file} is list<.*string>, not .*; move the file away"):
        EpisodeReader(file.parent)


def test_what_other_programs_write_is_read(tmp_path):
    """Wider numbers, longer texts, and no dictionaries, as polars writes them; columns that nothing is known of are null."""
    file = write(tmp_path, [row(1), row(2, kind=OF_EVALUATION)]) / "some.parquet"
    table = pq.read_table(file)
    wider = {"step": pa.int64(), "task_id": pa.large_string(), "queued_s": pa.float64(), "fates": pa.list_(pa.string())}
    for name, kind in wider.items():
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(kind))
    pq.write_table(table, file)
    episodes = list(EpisodeReader(file.parent).read(EpisodeReader(file.parent).places()))
    assert [(each.kind, each.task_id) for each in episodes] == [(Kind.TRAIN, "train-1"), (OF_EVALUATION, "train-2")]


def test_lists_of_tokens_that_differ_in_length_are_told(tmp_path):
    file = write(tmp_path, [row(1, logprobs=[0.0] * 3)]) / "some.parquet"
    reader = EpisodeReader(file.parent)
    with pytest.raises(EpisodesUnreadable, match=f"tokens in {file} are not all as long as token_ids; move the file away"):
        reader.places(by=Measure.GAP)
