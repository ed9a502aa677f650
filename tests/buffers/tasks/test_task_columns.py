"""What the recipe says of columns: checked against those that are there, and nothing else is decoded or moved."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.buffers.tasks.arrow_table import RepeatedKey, without_absent
from asyncrl.buffers.tasks.task_files import read_sources, remarks_on_rows
from asyncrl.buffers.tasks.task_stream import TaskSource
from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import Message, ToolCall, ToolSpec
from asyncrl.core.recipe.tasks import TaskFileConfig
from asyncrl.core.task import Task

VERL = {
    "prompt": [{"role": "user", "content": "1+2?"}],
    "reward_model": {"style": "rule", "ground_truth": "3"},
    "extra_info": {"index": 0, "answer": "1+2\n#### 3"},
}


def write(folder: Path, kind: str, rows: list[dict]) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)) if kind == "jsonl" else json.dumps(rows))
    return path


def read(path: Path, **keys) -> TaskSource:
    (source,) = read_sources([TaskFileConfig(path=str(path), **keys)], "tasks.train", "refuse")
    return source


def only(path: Path, **keys) -> Task:
    source = read(path, **keys)
    assert len(source.tasks) == 1
    return source.tasks[0]


def refused(path: Path, **keys) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        read(path, **keys)
    return caught.value


KINDS = pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])


@KINDS
def test_a_column_may_come_from_within_an_object(tmp_path, kind):
    columns = {"answer": "reward_model.ground_truth", "solution": "extra_info.answer", "id": "extra_info.index"}
    task = only(write(tmp_path, kind, [VERL]), columns=columns)
    assert task.id == "0"
    assert task.data == {key: VERL[key] for key in ("reward_model", "extra_info")} | {"answer": "3", "solution": "1+2\n#### 3"}


@KINDS
@pytest.mark.parametrize(
    ("keys", "place", "told"),
    [
        (
            {"columns": {"prompt": "promt"}},
            "columns.prompt",
            "has no column 'promt'; did you mean 'prompt'? name one of ['prompt',",
        ),
        ({"columns": {"answer": "reward"}}, "columns.answer", "has no column 'reward'"),
        ({"columns": {"answer": "reward_model.truth"}}, "columns.answer", "has no column 'reward_model.truth'"),
        ({"columns": {"id": "uid"}}, "columns.id", "has no column 'uid'; name one of ['prompt', 'reward_model', 'extra_info']"),
        ({"columns": {"tools": "tools"}}, "columns.tools", "has no column 'tools'"),
        ({"json": ["prompt", "answers"]}, "json[1]", "has no column 'answers'"),
    ],
)
def test_a_column_that_is_not_there_is_refused_with_those_that_are(tmp_path, kind, keys, place, told):
    error = refused(write(tmp_path, kind, [VERL]), **keys)
    assert error.place == f"tasks.train[0].{place}"
    assert told in str(error)


def test_a_row_that_lacks_a_named_column_is_malformed(tmp_path):
    path = write(tmp_path, "jsonl", [{"prompt": "a", "gold": 1}, {"prompt": "b"}])
    assert refused(path, columns={"answer": "gold"}).problem == f"{path}:2 has no 'gold', only 'prompt'"


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_column_may_come_from_within_json_text(tmp_path, kind):
    row = {"info": json.dumps({"gold": "3", "asked": "1+2?", "name": "a-1", "x": {"y": [1]}}), "more": {"z": '{"deep": 4}'}}
    path = write(tmp_path, kind, [row])
    named = {"prompt": "info.asked", "id": "info.name", "answer": "info.gold", "y": "info.x.y", "deep": "more.z.deep"}
    task = only(path, columns=named, json=["info", "more.z"])
    assert (task.id, task.prompt) == ("a-1", "1+2?")
    assert {key: task.data[key] for key in ("answer", "y", "deep")} == {"answer": "3", "y": [1], "deep": 4}
    assert "if 'info' holds JSON text, say so (json: [info])" in str(refused(path, columns=named))
    asked = {"prompt": "info.asked", "answer": "info.gold"}
    lacking = write(tmp_path, kind, [row, {**row, "info": '{"asked": "4?"}'}])
    assert re.search(r"has no 'info\.gold', only 'info'", refused(lacking, columns=asked, json=["info"]).problem)
    broken = write(tmp_path, kind, [row, {**row, "info": "{"}])
    assert "has '{' in 'info', which is no JSON text" in refused(broken, columns=named, json=["info", "more.z"]).problem


def test_json_text_that_is_none_is_found_when_its_file_is_read(tmp_path):
    for kind in ("jsonl", "parquet"):
        good, bad = {"prompt": "a", "x": '{"a": 1}', "y": {"z": "[1]"}}, {"prompt": "b", "x": "{bad", "y": {"z": "["}}
        path = write(tmp_path, kind, [good, bad])
        for named, text in (("x", "{bad"), ("y.z", "[")):
            assert f"has {text!r} in {named!r}, which is no JSON text" in str(refused(path, json=[named]))
            (source,) = read_sources([TaskFileConfig(path=str(path), json=[named])], "tasks.train", "skip")
            assert ([task.prompt for task in source.tasks], source.skipped) == (["a"], 1)
        deep, too_deep = ("[" * levels + "]" * levels for levels in (99, 100))
        assert only(write(tmp_path, kind, [{"prompt": "a", "x": deep}]), json=["x"]).data == {"x": json.loads(deep)}
        problem = str(refused(write(tmp_path, kind, [{"prompt": "a", "x": too_deep}]), json=["x"]))
        assert "has JSON text that is nested more than 100 levels deep" in problem


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            f'{{"a": {10**40}}}',
            "has a call with an integer of more than 64 bits in its JSON text; write that integer as text",
        ),
        (f'{{"a": {"[" * 100}{"]" * 100}}}', "has JSON text that is nested more than 100 levels deep; flatten it"),
    ],
)
@pytest.mark.parametrize("closing", [False, True])
def test_what_the_text_of_a_call_holds_can_be_sent(tmp_path, arguments, problem, closing):
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    messages = [{"role": "user", "content": "a"}, call] + ([] if closing else [{"role": "tool", "content": "1"}])
    for kind in ("jsonl", "parquet"):
        keys = {"reference": "gold"} if closing else {}
        error = refused(write(tmp_path, kind, [{"prompt": messages}]), **keys)
        assert re.search(problem, str(error))


def test_a_map_with_a_key_twice_is_named_and_not_halved(tmp_path):
    maps = pa.array([[("a", 1), ("b", 2)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    for name, column in (("x", maps), ("within", pa.StructArray.from_arrays([maps], ["x"]))):
        pq.write_table(pa.table({"prompt": ["a", "b"], name: column}), path := tmp_path / "a.parquet")
        assert refused(path).problem == (
            f"{path} row 1 (from 0) has a map with the key 'a' twice, of which one would be lost; leave one out"
        )
        (source,) = read_sources([TaskFileConfig(path=str(path))], "tasks.train", "skip")
        assert source.tasks[0].data == {name: {"a": 1, "b": 2} if name == "x" else {"x": {"a": 1, "b": 2}}}


def test_the_repeated_key_of_a_map_is_found_in_one_pass():
    compared = []

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            compared.append(other)
            return str.__eq__(self, other)

    pairs = [(Key(number), 1) for number in (*range(500), 499)]
    with pytest.raises(RepeatedKey, match="key '499' twice"):
        without_absent(pairs, pa.map_(pa.string(), pa.int64()))
    assert len(compared) < 5 * len(pairs)


def test_text_is_json_where_that_is_said_and_only_there(tmp_path):
    row = {"prompt": "a", "answers": '[{"n": 12345678901234567890123}]', "other": "[1]", "meta": {"tags": '["x"]', "text": "[2]"}}
    for kind in ("jsonl", "parquet"):
        task = only(write(tmp_path, kind, [row]), json=["answers", "meta.tags"])
        assert task.data == {
            "answers": [{"n": "12345678901234567890123"}],
            "other": "[1]",
            "meta": {"tags": ["x"], "text": "[2]"},
        }
    assert "has 'no JSON' in 'x', which is no JSON text" in str(
        refused(write(tmp_path, "jsonl", [{"prompt": "a", "x": "no JSON"}]), json=["x"])
    )


def test_integers_of_more_than_64_bits_are_text_and_that_is_said(tmp_path):
    numbers = {"small": 2**64 - 1, "low": -(2**63), "large": 2**64, "lower": -(2**63) - 1, "in": [{"it": 10**30}]}
    for kind in ("jsonl", "json"):
        source = read(write(tmp_path, kind, [{"prompt": "a"} | numbers, {"prompt": "b", "small": 1}]))
        assert source.tasks[0].data == numbers | {"large": str(2**64), "lower": str(-(2**63) - 1), "in": [{"it": str(10**30)}]}
        (said,) = remarks_on_rows([source], "train")
        assert said.endswith("integers of more than 64 bits are given as text (3 columns: large, lower, in)")
    for kind in ("jsonl", "parquet"):
        source = read(write(tmp_path, kind, [{"prompt": "a", "tests": f'[{{"returns": {10**30}}}]'}]), json=["tests"])
        assert source.tasks[0].data == {"tests": [{"returns": str(10**30)}]}
        assert [said.partition(": ")[2] for said in remarks_on_rows([source], "train")] == [
            "integers of more than 64 bits are given as text (1 column: tests)"
        ]


CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1, "y": null}'}}
HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALLED]},
    {"role": "tool", "content": "3", "tool_call_id": "c", "name": "f"},
]


def test_calls_in_history_are_messages_and_a_tool_may_have_the_last_word(tmp_path):
    task = only(write(tmp_path, "json", [{"prompt": HISTORY}]))
    assert task.prompt == (
        Message("user", "ab"),
        Message("assistant", "", (ToolCall("f", {"x": 1, "y": None}, "c"),)),
        Message("tool", "3", call_id="c", name="f"),
    )
    assert task.question == "ab"


WEATHER_CALL = {"name": "weather", "arguments": {"city": "Oslo"}}


@pytest.mark.parametrize(
    ("messages", "calls"),
    [
        ([{"from": "function_call", "value": json.dumps(WEATHER_CALL)}, {"from": "observation", "value": "sunny"}], 1),
        ([{"from": "function_call", "value": json.dumps([WEATHER_CALL] * 2)}, {"from": "observation", "value": "sunny"}], 2),
        (
            [
                {"role": "assistant", "content": None, "function_call": {**WEATHER_CALL, "arguments": '{"city": "Oslo"}'}},
                {"role": "function", "content": "sunny"},
            ],
            1,
        ),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_turn_that_calls_may_be_a_function_call_as_older_data_sets_have_it(tmp_path, kind, messages, calls):
    asked = {"from": "human", "value": "Where?"} if "from" in messages[0] else {"role": "user", "content": "Where?"}
    task = only(write(tmp_path, kind, [{"prompt": [asked, *messages]}]))
    called = ToolCall("weather", {"city": "Oslo"})
    assert task.prompt == (Message("user", "Where?"), Message("assistant", "", (called,) * calls), Message("tool", "sunny"))
    task = only(write(tmp_path, kind, [{"prompt": [asked, messages[0]]}]), reference="gold")
    assert task.data == {"gold": "", "gold_calls": [WEATHER_CALL] * calls}


def test_a_function_call_that_is_no_json_is_refused_with_the_way_to_write_it(tmp_path):
    rows = [
        {"prompt": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "f(1)"}, {"from": "human", "value": "b"}]}
    ]
    told = r"has role 'function_call' and the call 'f\(1\)', which is no JSON .*; write it as {name: NAME, arguments: {...}}"
    assert re.search(told, str(refused(write(tmp_path, "jsonl", rows))))


def test_a_field_that_a_table_has_of_other_calls_is_no_argument(tmp_path):
    def turns(**arguments):
        call = {"function": {"name": "f", "arguments": arguments}}
        return [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "user", "content": "b"},
        ]

    source = read(write(tmp_path, "parquet", [{"prompt": turns(left=1)}, {"prompt": turns(right="x")}]))
    assert [source.tasks[index].prompt[1].tool_calls for index in range(2)] == [
        (ToolCall("f", {"left": 1}),),
        (ToolCall("f", {"right": "x"}),),
    ]


def test_the_closing_turn_is_cut_off_where_that_is_said(tmp_path):
    closed = [*HISTORY, {"role": "assistant", "content": "It is", "tool_calls": [CALLED]}]
    path = write(tmp_path, "json", [{"prompt": closed}])
    task = only(path, reference="answer")
    assert len(task.prompt) == 3
    assert task.data == {"answer": "It is", "answer_calls": [{"name": "f", "arguments": {"x": 1, "y": None}}]}
    assert "ends with a message of role 'assistant'" in refused(path).problem
    assert "or set reference to the key under which the environment gets that turn" in refused(path).problem
    assert (
        "has no closing turn of the assistant"
        in refused(write(tmp_path, "jsonl", [{"prompt": HISTORY}]), reference="answer").problem
    )


def test_a_system_column_is_the_first_message(tmp_path):
    rows = [{"prompt": "a", "system": "Be brief."}, {"prompt": "b", "system": None}]
    for kind in ("jsonl", "parquet"):
        source = read(write(tmp_path, kind, rows), columns={"system": "system"})
        assert [source.tasks[index].prompt for index in range(2)] == [(Message("system", "Be brief."), Message("user", "a")), "b"]
        assert source.tasks[0].data == {}
    both = [{"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": "a"}], "system": "y"}]
    assert (
        "has a system message in its prompt and one in 'system'"
        in refused(write(tmp_path, "json", both), columns={"system": "system"}).problem
    )


def test_tools_are_shown_where_that_is_said_and_else_it_is_said_that_they_are_not(tmp_path):
    tools = [{"name": "f", "description": "Does.", "parameters": {"x": {"type": "int", "description": "It."}}}]
    path = write(tmp_path, "json", [{"prompt": "a", "tools": tools}])
    task = only(path, columns={"tools": "tools"})
    assert task.tools == (
        ToolSpec(
            "f", "Does.", {"type": "object", "properties": {"x": {"type": "integer", "description": "It."}}, "required": ["x"]}
        ),
    )
    assert task.data == {}
    hidden = read(path)
    assert hidden.tasks[0].data == {"tools": tools}
    (said,) = remarks_on_rows([hidden], "train")
    assert "the model is not told of the tools in column 'tools'" in said
    text = write(tmp_path, "jsonl", [{"prompt": "a", "tools": json.dumps(tools)}])
    assert "if it is JSON, say so (json: [tools])" in refused(text, columns={"tools": "tools"}).problem
    assert only(text, columns={"tools": "tools"}, json=["tools"]).tools == task.tools


@KINDS
def test_the_tools_of_a_row_may_have_other_arguments_than_each_other(tmp_path, kind):
    """In a table each has all arguments of the others, as nulls."""
    schemas = [{"type": "object", "properties": {name: {"type": "string"}}, "required": [name]} for name in ("city", "stock")]
    tools = [{"name": f"f{number}", "description": "d", "parameters": each} for number, each in enumerate(schemas)]
    task = only(write(tmp_path, kind, [{"prompt": "a", "tools": tools}]), columns={"tools": "tools"})
    assert [tool.parameters for tool in task.tools] == schemas
