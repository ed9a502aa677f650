"""Conversations as others have them: every form is read as the same messages, and what a model would not be told is refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from model_folders import write_tokenizer
from transformers import AddedToken, AutoTokenizer

from asyncrl.core.errors import RecipeError
from asyncrl.core.trajectory import Trajectory
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.replay.conversations import episodes_of_conversations

ASKED, SAID = {"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "Does it.", "parameters": {"type": "object", "properties": own}},
    }
    for name, own in (("add", {"a": {"type": "integer"}}), ("say", {"text": {"type": "string"}}))
]
THINKS = (
    "'<|im_start|>assistant\\n' + ('<think>\\n' + message.reasoning_content + '\\n</think>' if message.reasoning_content else '')"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write_tokenizer(folder := tmp_path_factory.mktemp("model"))
    return folder


@pytest.fixture(scope="module")
def chat(folder: Path) -> ChatFormat:
    return ChatFormat.load(str(folder))


@pytest.fixture(scope="module")
def thinking(folder: Path) -> ChatFormat:
    """The chat format of a model that thinks, with tokens of its own around what it thinks."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in ("<think>", "</think>")])
    plain = "'<|im_start|>assistant\\n'"
    assert plain in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(plain, THINKS, 1)
    return ChatFormat(tokenizer)


def told(file: Path, chat: ChatFormat) -> list[Trajectory]:
    return [episode.trajectories[0] for episode in episodes_of_conversations(file, chat, 1.0)]


def of_row(folder: Path, chat: ChatFormat, row: dict[str, Any]) -> Trajectory:
    file = folder / "told.jsonl"
    file.write_text(json.dumps(row))
    (found,) = told(file, chat)
    return found


def spoken(trajectory: Trajectory, chat: ChatFormat) -> list[str]:
    return [chat.decode(trajectory.token_ids[turn.start : turn.end].tolist()) for turn in trajectory.turns]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": json.dumps([ASKED, SAID])},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "1+1"}]}, {**SAID, "tool_calls": [], "name": None}]},
        {"conversations": [{"from": "human", "value": "1+1"}, {"from": "gpt", "value": "2"}]},
        {"conversations": [ASKED, SAID]},
        {"prompt": "1+1", "completion": "2"},
        {"prompt": [ASKED], "completion": [SAID]},
        {"prompt": json.dumps([ASKED]), "completion": json.dumps([SAID])},
        {"messages": [ASKED, {**SAID, "weight": True}], "system": "", "label": None, "functions": []},
        {"messages": [ASKED, {**SAID, "weight": 1.0}]},
    ],
)
def test_every_form_is_read_as_the_same_messages(tmp_path: Path, chat: ChatFormat, row: dict[str, Any]):
    usual = of_row(tmp_path, chat, {"messages": [ASKED, SAID]})
    assert of_row(tmp_path, chat, row).token_ids.tolist() == usual.token_ids.tolist()
    assert spoken(usual, chat) == ["2<|im_end|>"]


def test_a_call_in_the_form_of_older_data_sets_is_the_same_turn(tmp_path: Path, chat: ChatFormat):
    call, answer = {"name": "f", "arguments": {"x": 1}}, {"role": "tool", "content": "3"}
    usual = of_row(tmp_path, chat, {"messages": [ASKED, {"role": "assistant", "tool_calls": [call]}, answer, SAID]})
    older = [
        {"from": "human", "value": ASKED["content"]},
        {"from": "function_call", "value": json.dumps(call)},
        {"from": "observation", "value": "3"},
        {"from": "gpt", "value": SAID["content"]},
    ]
    single = [ASKED, {"role": "assistant", "content": None, "function_call": call}, {"role": "function", "content": "3"}, SAID]
    for row in ({"conversations": older}, {"messages": single}):
        found = of_row(tmp_path, chat, row)
        assert found.token_ids.tolist() == usual.token_ids.tolist()
        assert spoken(found, chat) == spoken(usual, chat)
        assert len(spoken(found, chat)) == 2


def test_a_text_that_is_json_of_another_kind_stays_a_text(tmp_path: Path, chat: ChatFormat):
    for text in ("[1, 2]", '["2"]', "[]", "[2", '{"role": "user"}'):
        found = of_row(tmp_path, chat, {"prompt": text, "completion": text})
        assert spoken(found, chat) == [f"{text}<|im_end|>"]
        assert chat.decode(found.token_ids.tolist()).count(text) == 2


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_system_text_beside_the_messages_is_the_system_message(tmp_path: Path, chat: ChatFormat, suffix: str):
    row = {"conversations": [{"from": "human", "value": "1+1"}, {"from": "gpt", "value": "2"}], "system": "Be brief."}
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "told.parquet")
    else:
        (tmp_path / "told.jsonl").write_text(json.dumps(row))
    (found,) = told(tmp_path / f"told.{suffix}", chat)
    usual = of_row(tmp_path, chat, {"messages": [{"role": "system", "content": "Be brief."}, ASKED, SAID]})
    assert found.token_ids.tolist() == usual.token_ids.tolist()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("label", False, "write it as reward"),
        ("score", 0, "write it as reward"),
        ("scores", [0.0], "write it as reward"),
        ("rewards", [0], "write it as reward"),
        ("rating", 1.5, "write it as reward"),
        ("is_correct", False, "write it as reward"),
        ("correct", False, "write it as reward"),
        ("chosen", "2", "a row of its own"),
        ("rejected", [SAID], "a row of its own"),
        ("functions", "[{}]", "describe them under tools"),
    ],
)
def test_what_others_say_under_keys_of_their_own_is_refused(
    tmp_path: Path, chat: ChatFormat, suffix: str, key: str, value: object, remedy: str
):
    row = {"messages": [ASKED, SAID], key: value}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "told.parquet")
    (tmp_path / "told.jsonl").write_text(json.dumps(row))
    with pytest.raises(RecipeError, match=rf"(line|row) 1 of .*told\.{suffix} is no conversation: it has '{key}', .*{remedy}"):
        told(tmp_path / f"told.{suffix}", chat)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("rewards", "problem"),
    [
        ([{"reward": 0.5}, {"reward": None}], r"(line|row) 2 of .* it has the reward null; give a number"),
        ([{"reward": 0.5}, {}], r"line 2 of .* it has no reward, other than rows before it|row 2 of .* the reward null"),
        ([{}, {}, {"reward": 0.5}], r"line 3 of .* it has a reward, other than rows before it|row 1 of .* the reward null"),
    ],
)
def test_a_row_without_a_reward_among_others_is_not_taken_for_a_perfect_one(
    tmp_path: Path, chat: ChatFormat, suffix: str, rewards: list[dict[str, Any]], problem: str
):
    rows = [{"messages": [ASKED, SAID], **reward} for reward in rewards]
    (tmp_path / "told.jsonl").write_text("\n".join(map(json.dumps, rows)))
    named = [*dict.fromkeys(name for row in rows for name in row)]
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in named}), tmp_path / "told.parquet")
    with pytest.raises(RecipeError, match=problem):
        told(tmp_path / f"told.{suffix}", chat)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(("given", "rewards"), [([True, False], [1.0, 0.0]), ([None, None], [1.0, 1.0])], ids=str)
def test_rewards_may_be_truths_or_a_column_without_any(
    tmp_path: Path, chat: ChatFormat, suffix: str, given: list[bool | None], rewards: list[float]
):
    rows = [{"messages": [ASKED, SAID]} | ({} if each is None else {"reward": each}) for each in given]
    (tmp_path / "told.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(pa.table({"messages": [row["messages"] for row in rows], "reward": given}), tmp_path / "told.parquet")
    found = episodes_of_conversations(tmp_path / f"told.{suffix}", chat, 1.0)
    assert [each.reward for each in found] == rewards


def test_other_numbers_beside_a_reward_bear_on_nothing(tmp_path: Path, chat: ChatFormat):
    file = tmp_path / "told.jsonl"
    for more, reward in (({"reward": 0.25, "score": 7, "correct": True}, 0.25), ({"score": None}, 1.0)):
        file.write_text(json.dumps({"messages": [ASKED, SAID], **more}))
        (found,) = episodes_of_conversations(file, chat, 1.0)
        assert found.reward == reward


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ([ASKED, SAID, SYSTEM, ASKED, SAID], "it takes no system message after a turn, and 'Be brief.' is one"),
        ([SYSTEM, {**SYSTEM, "content": "Be kind."}, ASKED, SAID], "it leaves out the system message 'Be kind.'"),
        ([ASKED, SYSTEM, SAID], "it leaves out the system message 'Be brief.'"),
    ],
)
def test_a_system_message_that_the_template_leaves_out_is_refused(
    tmp_path: Path, chat: ChatFormat, folder: Path, said: list[dict[str, str]], problem: str
):
    with pytest.raises(RecipeError, match=problem):
        of_row(tmp_path, chat, {"messages": said})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    later = "message.role == 'user' or (message.role == 'system' and not loop.first)"
    tokenizer.chat_template = tokenizer.chat_template.replace("message.role == 'user'", later)
    found = of_row(tmp_path, another := ChatFormat(tokenizer), {"messages": said})
    text = another.decode(found.token_ids.tolist())
    assert all(text.count(each["content"]) == [one["content"] for one in said].count(each["content"]) for each in said)


def test_a_table_does_not_add_what_only_other_rows_have(tmp_path: Path, chat: ChatFormat):
    """In a table every object has the keys of all: without care, calls would be trained with arguments that nobody gave."""
    calls = [{"name": "add", "arguments": {"a": 1}}, {"name": "say", "arguments": {"text": "2"}}]
    rows = [
        {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": [{"function": call}]}], "tools": TOOLS}
        for call in calls
    ]
    (tmp_path / "told.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "told.parquet")
    lines, table = told(tmp_path / "told.jsonl", chat), told(tmp_path / "told.parquet", chat)
    assert [each.token_ids.tolist() for each in table] == [each.token_ids.tolist() for each in lines]
    assert ['"arguments": {"a": 1}' in text for each in table for text in spoken(each, chat)] == [True, False]


def test_a_map_with_a_key_twice_is_refused_by_its_row(tmp_path: Path, chat: ChatFormat):
    messages = pa.array([[[*ASKED.items()], [*SAID.items(), ("content", "3")]]], pa.list_(pa.map_(pa.string(), pa.string())))
    pq.write_table(pa.table({"messages": messages}), tmp_path / "told.parquet")
    with pytest.raises(
        RecipeError,
        match=r"row 1 of .*told\.parquet has a map with the key 'content' twice, of which one would be lost; leave one out$",
    ):
        told(tmp_path / "told.parquet", chat)


def test_what_has_no_weight_is_shown_and_not_trained(tmp_path: Path, chat: ChatFormat):
    bad = {"role": "assistant", "content": "3", "weight": 0}
    found = of_row(tmp_path, chat, {"messages": [ASKED, bad, ASKED, SAID, ASKED, bad]})
    assert spoken(found, chat) == ["2<|im_end|>"]
    assert chat.decode(found.token_ids.tolist()).count("3") == 1
    assert found.loss_mask.sum() == found.turns[0].end - found.turns[0].start


@pytest.mark.parametrize(
    "turn",
    [
        {"content": "2", "reasoning_content": "So 2."},
        {"content": "2", "reasoning_content": "So 2.", "reasoning": "So 2.", "thinking": ""},
        {"content": "<think>\nSo 2.\n</think>\n\n2"},
    ],
)
def test_thoughts_are_written_with_the_models_own_tokens(tmp_path: Path, thinking: ChatFormat, turn: dict[str, str]):
    found = of_row(tmp_path, thinking, {"messages": [ASKED, {"role": "assistant", **turn}]})
    assert spoken(found, thinking) == ["<think>\nSo 2.\n</think>2<|im_end|>"]
    marks = thinking.tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    assert [token for token in found.token_ids.tolist() if token in marks] == marks


def test_thoughts_in_the_text_stay_there_for_a_model_that_has_no_tokens_for_them(tmp_path: Path, chat: ChatFormat):
    text = "<think>So 2.</think>2"
    found = of_row(tmp_path, chat, {"messages": [ASKED, {"role": "assistant", "content": text}]})
    assert spoken(found, chat) == [f"{text}<|im_end|>"]


@pytest.mark.parametrize(
    ("turn", "problem"),
    [
        ({"content": "2", "reasoning_content": "So 2."}, "it leaves out what was thought of a turn"),
        (
            {"content": '<tool_call>{"name": "add"}</tool_call>'},
            "'<tool_call>' in the assistant's text would be trained as ordinary",
        ),
        ({"content": "2<|im_end|>"}, r"'<\|im_end\|>' in the assistant's text"),
    ],
)
def test_what_the_model_would_say_otherwise_is_refused(tmp_path: Path, chat: ChatFormat, turn: dict[str, str], problem: str):
    with pytest.raises(RecipeError, match=problem):
        of_row(tmp_path, chat, {"messages": [ASKED, {"role": "assistant", **turn}]})


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"reward": float("nan")}, "has the reward nan; give a number"),
        ({"reward": float("-inf")}, "has the reward -inf; give a number"),
        ({"reward": 1e16}, r"has the reward 1e\+16; give a number, of at most 1e\+15 in size"),
        ({"reward": 10**400}, "another reward or group than is known"),
        (
            {"reward": "1"},
            "another reward or group than is known: .*; give a number as reward, and a text or a whole number as group",
        ),
        ({"messages": [ASKED, {**SAID, "weight": "0"}]}, "message 2 that has weight '0'; give 1, or 0"),
        ({"messages": [ASKED, {**SAID, "weight": 0.3}]}, "message 2 that has weight 0.3; give 1, or 0"),
        ({"messages": [ASKED, {**SAID, "weight": float("nan")}]}, "message 2 that has weight nan; give 1, or 0"),
        ({"messages": [SYSTEM, ASKED, SAID], "system": "2"}, "has system '2'; give one text"),
        ({"system": ["2"]}, r"has system \['2'\]; give one text"),
        (
            {"messages": [ASKED, {**SAID, "reasoning": "A", "reasoning_content": "B"}]},
            "message 2 that has different thoughts under reasoning_content and reasoning; give one text",
        ),
    ],
)
def test_values_that_could_be_read_in_two_ways_are_refused(tmp_path: Path, chat: ChatFormat, more: dict[str, Any], problem: str):
    with pytest.raises(RecipeError, match=f"line 1 of .* is no conversation: it .*{problem}"):
        of_row(tmp_path, chat, {"messages": [ASKED, SAID], **more})


def test_a_template_without_calls_refuses_them(tmp_path: Path, folder: Path):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = tokenizer.chat_template.replace("message.tool_calls or []", "[]")
    row = {"messages": [ASKED, {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}]}
    for text in ("", "I add."):
        row["messages"][1]["content"] = text
        with pytest.raises(RecipeError, match="it leaves out a call of a turn"):
            of_row(tmp_path, ChatFormat(tokenizer), row)


def test_a_template_that_writes_one_call_of_several_refuses_the_others(tmp_path: Path, folder: Path, chat: ChatFormat):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = tokenizer.chat_template.replace("message.tool_calls or []", "(message.tool_calls or [])[:1]")
    calls = [{"function": {"name": "add", "arguments": {"a": number}}} for number in (1, 2)]
    row = {"messages": [ASKED, {"role": "assistant", "tool_calls": calls}]}
    assert spoken(of_row(tmp_path, chat, row), chat)[0].count("add") == 2
    with pytest.raises(RecipeError, match="it leaves out a call of a turn"):
        of_row(tmp_path, ChatFormat(tokenizer), row)


def test_a_thought_whose_words_are_in_the_text_is_missed_all_the_same(tmp_path: Path, chat: ChatFormat):
    with pytest.raises(RecipeError, match="it leaves out what was thought of a turn"):
        of_row(tmp_path, chat, {"messages": [ASKED, {**SAID, "reasoning_content": "2"}]})
