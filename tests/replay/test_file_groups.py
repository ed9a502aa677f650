"""Training from files: kept trajectories come back as they were sampled, and conversations as the policy would have said them."""

import asyncio
import io
import json
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from learner_samples import edited, make_episode, make_several
from made_run import small_recipe
from model_folders import SMALL, write_model
from rich.console import Console

from asyncrl.core.episode import Episode
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import GroupId
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.episodes.schema import Kind
from asyncrl.episodes.writer import decoder, table, untrained
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.replay.conversations import episodes_of_conversations
from asyncrl.replay.kept_files import kept_episodes_of
from asyncrl.replay.offline import Offline, plan_offline
from asyncrl.run.views.live_view import LiveView

IMITATE = ["algorithm.loss={kind: cross_entropy}", "algorithm.correction={anchor: proximal_recomputed, weight: none}"]
TOOL = {"type": "function", "function": {"name": "calculator", "description": "Adds.", "parameters": {"type": "object"}}}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "calculator", "arguments": '{"a": 1}'}}]}
MESSAGES = [
    {"role": "user", "content": "1+1"},
    CALL,
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "2"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model", SMALL)


def lines(file: Path, *rows: object) -> Path:
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


def kept_file(file: Path, episodes: list[Episode], model: Path, step: int = 3) -> Path:
    rows = [
        untrained(each, part, Kind.TRAIN, step=step, version=step - 1, source="s")
        for each in episodes
        for part in range(len(each.trajectories))
    ]
    pq.write_table(table(rows, lambda source: "calculator", decoder(model)), file)
    return file


def planned(files: list[Path], model: Path, parent: Path, *overrides: str, **options: int):
    recipe = small_recipe(model, parent, *overrides)
    with LiveView(Console(file=io.StringIO()), "offline") as view:
        return plan_offline(Offline(recipe=recipe, runs=tuple(files), **options), parent / "made", view)


def test_kept_trajectories_come_back_as_they_were_sampled(model: Path, tmp_path: Path):
    before = [make_episode(7, 0, 4, 3, (1, 2), 1.0, temperature=1.0), make_several(7, 1, [("a", 4, 3), ("b", 5, 2)], 0.5)]
    kept_file(tmp_path / "train-3.parquet", before, model)
    kept_file(tmp_path / "train-2.parquet", before[:1], model, step=2)
    first, *after = kept_episodes_of([tmp_path / "train-3.parquet", tmp_path / "train-2.parquet"], 1, None, decoder(model))
    assert first.group_id == 7
    for old, new in zip(before, after, strict=True):
        new.check()
        assert (new.reward, new.sample_index, new.stop_reason) == (old.reward, old.sample_index, old.stop_reason)
        assert new.sampling == old.sampling
        for theirs, ours in zip(old.trajectories, new.trajectories, strict=True):
            for name in ("token_ids", "logprobs", "loss_mask"):
                assert np.array_equal(getattr(theirs, name), getattr(ours, name)), name
            assert np.array_equal(theirs.versions(), ours.versions())
            assert [(each.start, each.end) for each in theirs.turns] == [(each.start, each.end) for each in ours.turns]
            assert (theirs.part, theirs.role, theirs.why) == (ours.part, ours.role, ours.why)
    assert len(kept_episodes_of([tmp_path / "train-3.parquet"], 4, None, decoder(model))) == 0


def test_what_a_teacher_said_is_kept_and_trained(model: Path, tmp_path: Path):
    """Of a teacher that was asked about all episodes; files of earlier releases have no such column."""
    said = -np.arange(1, 7, dtype=np.float32)
    episodes = [edited(make_episode(1, n, 4, 3, (1,), n % 2, temperature=1.0), teacher_logprobs=said) for n in range(4)]
    file = kept_file(tmp_path / "train-1.parquet", episodes, model, 1)
    sampled = episodes[0].trajectories[0].loss_mask
    for column in pq.read_table(file, columns=["teacher_logprobs"])["teacher_logprobs"].to_pylist():
        assert np.array(column)[sampled].tolist() == said.tolist()
        assert not np.array(column)[~sampled].any()
    taught = ["+algorithm.teacher={path: t}", "algorithm.advantage={kind: none}", "batch.groups_per_step=1"]
    recorded, _ = planned([file], model, tmp_path, "steps=1", *taught)
    assert [len(group) for group in recorded.groups] == [4]
    for each in kept_episodes_of([file], 1, None, decoder(model)):
        assert each.trajectories[0].teacher_logprobs.tolist() == said.tolist()
    pq.write_table(pq.read_table(file).drop_columns("teacher_logprobs"), tmp_path / "earlier.parquet")
    with pytest.raises(RecipeError, match=r"needs a teacher's log-probabilities, which .*earlier\.parquet does not have"):
        planned([tmp_path / "earlier.parquet"], model, tmp_path, "steps=1", *taught)


@pytest.mark.parametrize(
    ("sizes", "overrides", "told"),
    [
        ((4, 4), [], None),
        (
            (4, 2),
            [],
            "1 of 2 groups of kept trajectories have fewer episodes than batch.group_size 4: unless they were sampled so",
        ),
        ((2, 2), ["batch.group_size=2"], None),
        ((4, 2), IMITATE, None),
    ],
)
def test_groups_of_which_a_sample_was_kept_are_told(model: Path, tmp_path: Path, sizes, overrides, told: str | None):
    files = [
        kept_file(
            tmp_path / f"train-{step}.parquet",
            [make_episode(step, n, 4, 3, (1,), n % 2, temperature=1.0) for n in range(size)],
            model,
            step,
        )
        for step, size in enumerate(sizes, 1)
    ]
    _, remarks = planned(files, model, tmp_path, "steps=1", *overrides)
    assert [told] * (told is not None) == [each[: len(told or "")] for each in remarks if "groups of kept trajectories" in each]


def test_steps_of_conversations_which_have_none_are_told(model: Path, tmp_path: Path):
    file = lines(tmp_path / "told.jsonl", *({"prompt": "1+1", "completion": "2"},) * 4)
    told = "--steps says nothing of conversations, which have no steps: all of them are trained"
    overrides = ("batch.groups_per_step=1", *IMITATE)
    assert told in planned([file], model, tmp_path, *overrides, first=2, last=3)[1]
    assert told not in planned([file], model, tmp_path, *overrides)[1]


def test_groups_of_two_files_stay_apart_and_are_trained(model: Path, tmp_path: Path):
    steps = [
        kept_file(
            tmp_path / f"train-{step}.parquet",
            [make_episode(step, n, 4, 3, (1,), n % 2, temperature=1.0) for n in range(4)],
            model,
            step,
        )
        for step in (1, 2)
    ]
    recorded, remarks = planned(steps, model, tmp_path, "steps=1")
    assert [len(group) for group in recorded.groups] == [4, 4]
    assert not remarks


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["sampling.temperature=0.7"], "sampling.temperature: is 0.7, and .* was sampled at 1"),
        (["+algorithm.teacher={path: t}"], r"algorithm\.teacher: needs a teacher's log-probabilities"),
        (["algorithm.advantage={kind: remax}"], r"algorithm\.advantage\.kind: .* needs a greedy episode in each group"),
        (["algorithm.advantage={kind: gdpo, rewards: {polite: 1}}"], "has no metric 'polite'"),
        (
            ["learner.micro_batch_tokens=40", "model.max_context=40", "sampling.max_turn_tokens=8"],
            "40 cannot hold task-1, which has 46 tokens",
        ),
    ],
)
def test_kept_trajectories_that_do_not_suit_are_refused(model: Path, tmp_path: Path, overrides: list[str], problem: str):
    file = kept_file(
        tmp_path / "train-1.parquet", [make_episode(1, n, 4, 20, (1,), 1.0, temperature=1.0) for n in range(2)], model
    )
    with pytest.raises(RecipeError, match=problem):
        planned([file], model, tmp_path, *overrides)


@pytest.mark.parametrize("theirs", [(0, 1), (2, 3)])
def test_files_of_two_runs_are_refused_and_not_mixed(model: Path, tmp_path: Path, theirs: tuple[int, ...]):
    ours = kept_file(tmp_path / "train-3.parquet", [make_episode(7, n, 4, 3, (1,), 1.0) for n in (0, 1)], model)
    others = [msgspec.structs.replace(make_episode(7, n, 4, 3, (1,), 1.0), task_id="another") for n in theirs]
    other = kept_file(tmp_path / "other.parquet", others, model)
    with pytest.raises(RecipeError, match=f"--from: files of two runs, .* have sample {theirs[0]} of group 7 in step 3"):
        kept_episodes_of([ours, other], 1, None, decoder(model))


def test_tokens_of_another_tokenizer_are_told(model: Path, tmp_path: Path):
    kept_file(tmp_path / "train-1.parquet", [make_episode(1, 0, 4, 3, (1,), 1.0)], model)
    with pytest.raises(RecipeError, match=r"model\.path: has another tokenizer than the model that sampled task task-1"):
        kept_episodes_of([tmp_path / "train-1.parquet"], 1, None, lambda ids: "?")


async def test_a_conversation_is_what_the_policy_would_have_said(model: Path, tmp_path: Path):
    chat = ChatFormat.load(str(model))
    tool = ToolSpec("calculator", "Adds.", {"type": "object", "properties": {}})
    call = {**CALL, "content": "", "tool_calls": [{"function": {"name": "calculator", "arguments": {"a": 1}}}]}
    user, answer = {"role": "user", "content": "1+1"}, {"role": "tool", "content": "2"}
    prompt = await chat.prompt([Message("user", "1+1")], [tool])
    said = chat.written_turn([user], call, [tool])
    delta = await chat.delta([Message("tool", "2")], [tool])
    last = chat.written_turn([user, call, answer], MESSAGES[-1], [tool])
    expected = [(prompt, False), (said, True), (delta, False), (last, True)]

    file = lines(tmp_path / "told.jsonl", {"messages": MESSAGES, "tools": [TOOL], "reward": 0.5})
    (episode,) = await asyncio.to_thread(episodes_of_conversations, file, chat, 0.8)
    (trajectory,) = episode.trajectories
    episode.check()
    assert trajectory.token_ids.tolist() == [token for part, _ in expected for token in part]
    assert trajectory.loss_mask.tolist() == [spoken for part, spoken in expected for _ in part]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.5]
    assert (episode.reward, episode.sampling.temperature, episode.group_id) == (0.5, 0.8, GroupId(0))
    assert chat.decode(said).count("calculator") == 1


def test_conversations_are_imitated_and_only_that(model: Path, tmp_path: Path):
    plain = [MESSAGES[0], MESSAGES[-1]]
    file = lines(tmp_path / "told.jsonl", *({"messages": plain, "group": number // 2} for number in range(4)))
    recorded, remarks = planned([file], model, tmp_path, *IMITATE, "steps=1")
    assert [len(group) for group in recorded.groups] == [2, 2]
    assert "conversations have no log-probabilities" in remarks[0]
    with pytest.raises(
        RecipeError, match=r"uses the log-probabilities with which tokens were sampled, and .*told.jsonl has none"
    ):
        planned([file], model, tmp_path)


def test_conversations_of_one_group_need_not_follow_each_other(model: Path, tmp_path: Path):
    said = [[MESSAGES[0], {"role": "assistant", "content": str(number)}] for number in range(4)]
    rows = [{"messages": each, "group": number % 2, "reward": float(number)} for number, each in enumerate(said)]
    files = [lines(tmp_path / name, *rows) for name in ("told.jsonl", "more.jsonl")]
    recorded, _ = planned(files, model, tmp_path, *IMITATE, "steps=1")
    assert [[episode.reward for episode in group] for group in recorded.groups] == [[0.0, 2.0], [1.0, 3.0]] * 2


def test_a_file_that_is_named_twice_is_refused(model: Path, tmp_path: Path):
    file = lines(tmp_path / "told.jsonl", {"messages": MESSAGES[::3]})
    (tmp_path / "link.jsonl").symlink_to(file)
    for again in (file, tmp_path / "link.jsonl"):
        with pytest.raises(RecipeError, match=r"--from: .*told\.jsonl is named twice"):
            planned([file, again], model, tmp_path, *IMITATE)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"message": []}, "line 1 of .* is no conversation: .*messages"),
        ({"messages": [{"role": "user", "content": "1"}]}, "none of the assistant"),
        ({"messages": [{"role": "assistant", "content": "1"}]}, "no message before the assistant's"),
        ({"messages": [MESSAGES[0], MESSAGES[-1], MESSAGES[-1]]}, "two messages of the assistant follow each other"),
        ({"messages": [{"role": "user", "content": ["1"]}, MESSAGES[-1]]}, r"message 1 that has content \['1'\]; give one text"),
        ({"messages": [MESSAGES[0], {**CALL, "tool_calls": ["add"]}]}, "message 2 that has the call 'add'"),
        ({"messages": [MESSAGES[0], {**MESSAGES[-1], "weight": 0}]}, "none of the assistant that is trained"),
        ({"messages": "[1"}, r"has messages '\[1', which is no JSON"),
        ({"prompt": 1, "completion": "2"}, "has prompt .*; give a list of messages"),
        (
            {"messages": MESSAGES[:1], "reward": "1"},
            "another reward or group than is known: Expected `bool \\| float`, got `str`",
        ),
    ],
)
def test_what_is_no_conversation_is_told_by_its_place(model: Path, tmp_path: Path, row: object, problem: str):
    with pytest.raises(RecipeError, match=problem):
        planned([lines(tmp_path / "told.jsonl", row)], model, tmp_path, *IMITATE)


def test_a_file_that_is_not_there_or_of_another_kind_is_told(model: Path, tmp_path: Path):
    with pytest.raises(RecipeError, match=r"--from: there is no .*gone\.parquet"):
        planned([tmp_path / "gone.parquet"], model, tmp_path)
    lines(tmp_path / "told.json", MESSAGES)
    with pytest.raises(RecipeError, match=r"--from: .*told\.json is neither \.parquet nor \.jsonl"):
        planned([tmp_path / "told.json"], model, tmp_path)
    lines(tmp_path / "none.jsonl")
    with pytest.raises(RecipeError, match=r"none\.jsonl is empty"):
        planned([tmp_path / "none.jsonl"], model, tmp_path, *IMITATE)
    pq.write_table(pa.table({"question": ["1+1"], "answer": ["2"]}), tmp_path / "other.parquet")
    with pytest.raises(RecipeError, match=r"other\.parquet holds neither .* its columns are question, answer"):
        planned([tmp_path / "other.parquet"], model, tmp_path, *IMITATE)
