"""Files and folders of every supported format are read as the same tasks; what is no task is named, and refused or counted."""

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers.tasks.task_files import read_sources, remarks_on_rows
from asyncrl.buffers.tasks.task_stream import TaskSource, TaskStream
from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import Message
from asyncrl.core.recipe.tasks import TaskFileConfig
from asyncrl.core.task import Task

ROWS = [{"prompt": f"{i}+{i}", "id": f"sum-{i}", "answer": 2 * i, "meta": {"level": i % 3, "tags": ["a"]}} for i in range(7)]
TASKS = [Task(id=row["id"], prompt=row["prompt"], data={"answer": row["answer"], "meta": row["meta"]}) for row in ROWS]


def read(path: Path, on_malformed="refuse", **keys) -> TaskSource:
    (source,) = read_sources([TaskFileConfig(path=str(path), **keys)], "tasks.train", on_malformed)
    return source


def tasks_of(source: TaskSource) -> list[Task]:
    return [source.tasks[index] for index in range(len(source.tasks))]


def refusal(path: Path, **keys) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        read(path, **keys)
    return caught.value


def write_jsonl(path: Path, rows=ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_parquet(path: Path, rows=ROWS, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), path, **options)
    return path


def save_to_disk(folder: Path, rows=ROWS, shards: int = 2, **state) -> Path:
    """Write a folder as ``Dataset.save_to_disk`` of datasets 5.2 does."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{shard:05}-of-{shards:05}.arrow" for shard in range(shards)]
    size = -(-len(rows) // shards)
    for shard, name in enumerate(names):
        table = pa.Table.from_pylist(rows).slice(shard * size, size)
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    described = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "f31da8f145991379",
        "_format_columns": ["prompt"],
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
        **state,
    }
    (folder / "state.json").write_text(json.dumps(described))
    (folder / "dataset_info.json").write_text(json.dumps({"citation": "", "description": "", "features": {}}))
    return folder


def save_dict_to_disk(folder: Path, **splits) -> Path:
    """Write a folder as ``DatasetDict.save_to_disk`` does."""
    for split, rows in splits.items():
        save_to_disk(folder / split, rows)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: write_jsonl(folder / "a.jsonl"),
        lambda folder: write_jsonl(folder / "a.json"),
        lambda folder: write_jsonl(folder / "a.txt"),
        lambda folder: write_parquet(folder / "a.parquet"),
        lambda folder: write_parquet(folder / "a.bin"),
        lambda folder: write_parquet(folder / "a.parquet", row_group_size=2),
        lambda folder: save_to_disk(folder / "d"),
        lambda folder: save_to_disk(folder / "d", shards=1, _split="train"),
        lambda folder: save_dict_to_disk(folder / "d", train=ROWS),
        lambda folder: write_parquet(folder / "data" / "train-00000-of-00001.parquet").parents[1],
        lambda folder: write_jsonl(folder / "d" / "train.jsonl").parent,
        lambda folder: write_parquet(folder / "train" / "0000.parquet").parents[1],
    ],
)
def test_every_format_gives_the_same_tasks(tmp_path, write):
    source = read(write(tmp_path))
    assert tasks_of(source) == TASKS
    assert source.skipped == 0
    with pytest.raises(IndexError):
        source.tasks[len(TASKS)]


def test_byte_order_mark_carriage_returns_and_empty_lines_are_no_content(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(row) for row in ROWS]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n  \n".join(lines).encode())
    assert tasks_of(read(path)) == TASKS


def test_only_line_feeds_end_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a\u2028b\u0085c"}\n', encoding="utf-8")
    assert tasks_of(read(path))[0].prompt == "a\u2028b\u0085c"


@given(
    st.lists(
        st.fixed_dictionaries(
            {"prompt": st.text().filter(str.strip), "n": st.integers(-(2**63), 2**63 - 1), "x": st.none() | st.text()}
        )
    )
)
def test_any_text_comes_through_json_and_parquet(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("rows")
    schema = pa.schema({"prompt": pa.string(), "n": pa.int64(), "x": pa.string()})
    table = pa.Table.from_pylist(rows, schema=schema)
    for path in (write_jsonl(folder / "a.jsonl", rows), write_parquet(folder / "a.parquet", table, row_group_size=3)):
        if not rows:
            assert "holds no task" in str(refusal(path))
            continue
        read_back = tasks_of(read(path))
        assert [{"prompt": task.prompt, **task.data} for task in read_back] == rows


def test_rows_without_an_id_are_named_by_file_and_line(tmp_path):
    rows = [{"prompt": "a"}, {"prompt": "b", "id": "own"}, {"prompt": "c", "id": None}, {"prompt": "d", "id": 7}]
    assert [task.id for task in tasks_of(read(write_jsonl(tmp_path / "a.jsonl", rows)))] == ["a.jsonl:1", "own", "a.jsonl:3", "7"]
    rows[0]["id"], rows[3]["id"] = None, "seven"
    assert [task.id for task in tasks_of(read(write_parquet(tmp_path / "a.parquet", rows)))] == [
        "a.parquet:0",
        "own",
        "a.parquet:2",
        "seven",
    ]
    folder = save_to_disk(tmp_path / "saved", [{"prompt": "a"}, {"prompt": "b"}])
    assert [task.id for task in tasks_of(read(folder))] == [
        "saved/data-00000-of-00002.arrow:0",
        "saved/data-00001-of-00002.arrow:0",
    ]


def test_columns_can_have_other_names(tmp_path):
    rows = [{"question": "1+1", "number": 3, "prompt": "kept", "id": "kept"}]
    for path in (write_jsonl(tmp_path / "a.jsonl", rows), write_parquet(tmp_path / "a.parquet", rows)):
        (task,) = tasks_of(read(path, columns={"prompt": "question", "id": "number"}))
        assert task == Task(id="3", prompt="1+1", data={"prompt": "kept", "id": "kept"})


def test_the_prompt_can_be_the_id(tmp_path):
    rows = [{"prompt": "1+1"}, {"prompt": "2+2"}, {"prompt": "1+1"}]
    for path in (write_jsonl(tmp_path / "a.jsonl", rows), write_parquet(tmp_path / "a.parquet", rows)):
        source = read(path, on_malformed="skip", columns={"id": "prompt"})
        assert tasks_of(source) == [Task(id=prompt, prompt=prompt) for prompt in ("1+1", "2+2")]
        assert source.skipped == 1


def test_ids_of_several_sources_begin_with_their_names_and_are_unique(tmp_path):
    rows = [{"prompt": "a", "id": 0}, {"prompt": "b"}]
    files = [TaskFileConfig(path=str(write_jsonl(tmp_path / name / "train.jsonl", rows)), weight=2) for name in ("math", "code")]
    sources = read_sources(files, "tasks.train", "refuse")
    assert [task.id for source in sources for task in tasks_of(source)] == [
        "math/train.jsonl/0",
        "math/train.jsonl:2",
        "code/train.jsonl/0",
        "code/train.jsonl:2",
    ]
    assert [(source.name, source.weight) for source in sources] == [("math/train.jsonl", 2.0), ("code/train.jsonl", 2.0)]


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
EXAMPLES = [*CHAT, {"role": "assistant", "content": "2"}, {"role": "user", "content": "2+2?"}]


@pytest.mark.parametrize("write", [write_jsonl, write_parquet, save_to_disk])
def test_chat_messages_are_prompts_in_every_format(tmp_path, write):
    rows = [{"prompt": CHAT, "id": "a", "answer": 2}, {"prompt": EXAMPLES, "id": "b", "answer": 4}]
    tasks = tasks_of(read(write(tmp_path / "chat.jsonl" if write is write_jsonl else tmp_path / "chat", rows)))
    assert [task.prompt for task in tasks] == [tuple(Message(**one) for one in row["prompt"]) for row in rows]
    assert [task.question for task in tasks] == ["1+1?", "2+2?"]
    assert [task.data for task in tasks] == [{"answer": 2}, {"answer": 4}]
    # The prompt is the same after its way through ticket and journal.
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(tasks), type=list[Task]) == tasks


def test_keys_that_a_table_fills_with_nulls_are_no_mistake_and_others_are(tmp_path):
    messages = [{"role": "user", "content": "a", "name": None}]
    (task,) = tasks_of(read(write_parquet(tmp_path / "a.parquet", [{"prompt": messages}])))
    assert task.prompt == (Message("user", "a"),)
    named = [{"prompt": messages}, {"prompt": [{"role": "user", "content": "a", "name": "Ann"}]}]
    error = refusal(write_parquet(tmp_path / "b.parquet", named))
    assert f"{tmp_path / 'b.parquet'} row 1 (from 0) has a prompt whose message 1 has 'name', which would not" in str(error)


def turns(*texts: str) -> list[dict[str, Any]]:
    roles = ("system", "user")[-len(texts) :]
    return [{"role": role, "content": text, "tool_calls": None} for role, text in zip(roles, texts, strict=True)]


IN_TABLES: dict[str, list[dict[str, Any]]] = {
    "null everywhere in messages": [{"prompt": turns("S", "a")}, {"prompt": turns("b")}],
    "null everywhere in a list of objects": [
        {"prompt": "a", "tools": [{"name": "f", "strict": None}, {"name": "g", "strict": None}]}
    ],
    "null everywhere beside a date": [{"prompt": "a", "x": [{"n": None, "m": 1}, {"n": None, "m": 2}]}],
    "null everywhere in an object": [{"prompt": "a", "x": {"n": None}}, {"prompt": "b", "x": {"n": None}}],
    "null everywhere": [{"prompt": "a", "x": None}],
    "only nulls in a list": [{"prompt": "a", "x": [None, None]}],
    "empty lists": [{"prompt": "a", "x": []}, {"prompt": "b", "x": {"y": []}["y"]}],
    "objects with other keys": [{"prompt": "a", "x": {"left": 1}}, {"prompt": "b", "x": {"right": 2}}],
    "objects with other keys in lists": [{"prompt": "a", "x": [{"left": 1}, {"right": [{"far": "c"}]}]}],
}
"""Rows whose table has nulls that the rows do not have, or a type that is null."""


@pytest.mark.parametrize("rows", IN_TABLES.values(), ids=IN_TABLES)
@pytest.mark.parametrize("write", [write_parquet, save_to_disk])
def test_a_table_has_the_tasks_of_the_same_json_lines(tmp_path, rows, write):
    rows = [{"id": str(number), **row} for number, row in enumerate(rows)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows])
    path = (
        write_parquet(tmp_path / "a.parquet", table)
        if write is write_parquet
        else save_to_disk(tmp_path / "a", table.to_pylist(), 1)
    )
    assert tasks_of(read(path)) == tasks_of(read(write_jsonl(tmp_path / "a.jsonl", rows)))


def test_what_is_cast_beside_nulls_keeps_its_place(tmp_path):
    day = datetime.date(2026, 1, 1)
    table = pa.Table.from_pylist([{"prompt": "a", "x": [{"day": day, "n": None}, {"day": day, "n": None}]}])
    (task,) = tasks_of(read(write_parquet(tmp_path / "a.parquet", table)))
    assert task.data == {"x": [{"day": "2026-01-01", "n": None}] * 2}


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_messages_as_json_text_are_messages_where_that_is_said_and_nothing_else_is(tmp_path, write):
    path, text = tmp_path / ("a.jsonl" if write is write_jsonl else "a.parquet"), json.dumps(CHAT)
    write(path, [{"prompt": text, "x": "[1]"}])
    (task,) = tasks_of(read(path, json=["prompt"]))
    assert (task.prompt, task.data) == (tuple(Message(**one) for one in CHAT), {"x": "[1]"})
    assert [task.prompt for task in tasks_of(read(path, json=[]))] == [text]
    assert "has chat messages as JSON text for a prompt; say so (json: [prompt])" in refusal(path).problem
    other = ["[1, 2]", "[]", '["a"]', '[{"role": "user"}]', '{"role": "user", "content": "a"}', "[not JSON"]
    write(path, [{"prompt": each} for each in other])
    assert [task.prompt for task in tasks_of(read(path))] == other
    assert "has '[not JSON' in 'prompt', which is no JSON text" in str(
        refusal(write_jsonl(tmp_path / "b.jsonl", [{"prompt": other[-1]}]), json=["prompt"])
    )


MALFORMED = {
    '{"prompt": ""}': "has an empty prompt, ''; ask the model something",
    r'{"prompt": " \n"}': r"has an empty prompt, ' \n'",
    '{"prompt": [{"role": "user", "content": " "}]}': "has a prompt whose last message is empty, ' '",
    '{"prompt": [{"role": "user", "content": null}]}': "has a prompt whose message 1 has null as 'content'; write it as",
    '{"prompt": [{"role": null, "content": "a"}]}': "has a prompt whose message 1 has null as 'role'",
    '{"prompt": ': "is not a JSON object",
    "[1]": "is not a JSON object (Expected `object`, got `array`)",
    '{"prompt": NaN}': "is not a JSON object (it holds NaN, which JSON does not have; write null)",
    '{"prompt": "a", "x": -Infinity}': "is not a JSON object (it holds -Infinity, which JSON does not have; write null)",
    '{"prompt": "\\ud800"}': r"holds '\ud800', half of a surrogate pair, which is no character; write the character itself",
    '{"prompt": "a", "id": "\\udc00abc"}': r"holds '\udc00', half of a surrogate pair",
    '{"prompt": "a\\ud83d b"}': r"holds '\ud83d', half of a surrogate pair",
    '{"x": ' * 100_000: "is nested more than 100 levels deep",
    f'{{"prompt": "a", "id": "deep", "x": {"[" * 100}{"]" * 100}}}': "(id 'deep') is nested more than 100 levels deep",
    f'{{"prompt": "a", "x": {"[" * 980}{"]" * 980}}}': "is nested more than 100 levels deep; flatten it",
    '{"question": "a", "n": 1}': "has no 'prompt', only 'question', 'n'",
    "{}": "has no 'prompt', only an empty object",
    '{"prompt": 3}': "has prompt 3",
    '{"prompt": null}': "has prompt None",
    '{"prompt": []}': "has an empty list as prompt",
    '{"prompt": ["a"]}': "has a prompt whose message 1 is 'a'; write it as {role: user, content: TEXT}",
    '{"prompt": [{"role": "user"}]}': "whose message 1 has no 'content', only 'role'",
    '{"prompt": [{"role": "tool", "content": "a"}]}': "message 1 has role 'tool', and follows no turn of",
    '{"prompt": [{"role": "critic", "content": "a"}]}': "has role 'critic'; known are system, user, assistant, tool",
    '{"prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}': "give one text, or parts",
    '{"prompt": [{"role": "user", "content": []}]}': "has content []; give one text",
    '{"prompt": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}': "message 2 has role 'system', which",
    '{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}': "ends with a message of role",
    '{"prompt": [{"role": "assistant", "tool_calls": [1]}, {"role": "user", "content": "a"}]}': "has the call 1; write it",
    '{"prompt": [{"role": "user", "content": "a", "tool_calls": [{"name": "f"}]}]}': "only the assistant calls tools",
    '{"prompt": [{"role": "user", "content": "a", "reasoning": "b"}]}': "has 'reasoning', which would not reach the model",
    '{"prompt": "a", "id": "good"}': "repeats the id 'good'",
    '{"prompt": "a", "id": 1.5}': "has id 1.5",
    '{"prompt": "a", "id": true}': "has id True",
    '{"prompt": "a", "id": ""}': "has id ''",
}


def test_what_only_looks_nested_or_halved_comes_through(tmp_path):
    rows = [
        {"prompt": "[" * 500 + "{" * 500, "x": [[]] * 200, "id": "brackets"},
        {"prompt": "\U0001f600", "x": json.loads("[" * 99 + "]" * 99), "id": "as deep as may be"},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert [(task.id, task.prompt, task.data["x"]) for task in tasks_of(read(path))] == [
        (row["id"], row["prompt"], row["x"]) for row in rows
    ]


def test_a_row_without_an_id_whose_place_is_the_id_of_another_is_told_so(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "id": "a.jsonl:2"}, {"prompt": "b"}])
    told = f"{path}:2 has no id, and its place, 'a.jsonl:2', is the id of another row; give it an id of its own"
    assert told in refusal(path).problem
    source = read(path, on_malformed="skip")
    assert [task.id for task in tasks_of(source)] == ["a.jsonl:2"]


@pytest.mark.parametrize(("line", "told"), MALFORMED.items())
def test_a_malformed_line_is_named_and_refused_or_skipped(tmp_path, line, told):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"prompt": "a", "id": "good"}}\n\n{line}\n{{"prompt": "b"}}')
    error = refusal(path)
    assert error.place == "tasks.train[0]"
    assert f"{path}:3 {told}" in error.problem or (f"{path}:3" in error.problem and told in error.problem)
    assert "set tasks.on_malformed to skip" in error.remedy
    source = read(path, on_malformed="skip")
    assert [task.id for task in tasks_of(source)] == ["good", "a.jsonl:4"]
    assert source.skipped == 1
    assert TaskStream([source], seed=0).skipped == {"a.jsonl": 1}
    (remark,) = remarks_on_rows([source], "train")
    assert remark.startswith(f"tasks.train (a.jsonl): 1 of 3 rows are malformed and left out: {path}:3")


def test_bytes_that_are_no_utf8_are_malformed(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}\n{"prompt": "b"}')
    assert f"{path}:1 is not a JSON object ('utf-8' codec" in refusal(path).problem
    assert read(path, on_malformed="skip").skipped == 1


def test_malformed_rows_of_a_table_are_named_by_row(tmp_path):
    rows = [{"prompt": "a", "id": "x"}, {"prompt": None, "id": "y"}, {"prompt": "c", "id": "x"}, {"prompt": "d", "id": None}]
    path = write_parquet(tmp_path / "a.parquet", rows, row_group_size=3)
    error = refusal(path)
    assert error.problem == f"{path} row 1 (from 0) has prompt None; {path} row 2 (from 0) repeats the id 'x'"
    source = read(path, on_malformed="skip")
    assert [(task.id, task.prompt) for task in tasks_of(source)] == [("x", "a"), ("a.parquet:3", "d")]
    assert source.skipped == 2


def test_skipped_rows_are_told_the_first_by_name_and_all_by_number(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n" * 9 + '{"prompt": "a"}')
    (told,) = remarks_on_rows([read(path, on_malformed="skip")], "train")
    assert told.startswith("tasks.train (a.jsonl): 9 of 10 rows are malformed and left out: ")
    assert f"{path}:3" in told
    assert f"{path}:4" not in told
    assert told.endswith("and 6 more")


@pytest.mark.parametrize("on_malformed", ["refuse", "skip"])
def test_a_source_without_a_good_row_is_refused(tmp_path, on_malformed):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    assert "holds no task" in str(refusal(tmp_path / "empty.jsonl", on_malformed=on_malformed))
    (tmp_path / "bad.jsonl").write_text("{}\n")
    error = refusal(tmp_path / "bad.jsonl", on_malformed=on_malformed)
    assert "bad.jsonl:1 has no 'prompt'" in str(error)
    assert "set tasks.train[0].columns.prompt to the column that holds what is asked" in error.remedy
    table = pa.table({"prompt": pa.array([], pa.string())})
    assert "holds no task" in str(refusal(write_parquet(tmp_path / "a.parquet", table), on_malformed=on_malformed))
    assert "holds no task" in str(refusal(save_to_disk(tmp_path / "saved", _data_files=[]), on_malformed=on_malformed))


def test_columns_become_what_json_can_say(tmp_path):
    columns = {
        "when": pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)]),
        "day": pa.array([datetime.date(2024, 1, 2)]),
        "price": pa.array([decimal.Decimal("1.50")]),
        "kind": pa.array(["easy"]).dictionary_encode(),
        "half": pa.array([1.5], pa.float16()),
        "days": pa.array([[datetime.date(2024, 1, 2), None]]),
        "pair": pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
        "object": pa.array([{"a": decimal.Decimal("2"), "b": [True, None]}]),
        "map": pa.array([[("k", datetime.date(2024, 1, 2))]], pa.map_(pa.string(), pa.date32())),
        "large": pa.array([2**64 - 1], pa.uint64()),
        "nothing": pa.nulls(1),
    }
    path = write_parquet(tmp_path / "a.parquet", pa.table({"prompt": ["a"], **columns}))
    (task,) = tasks_of(read(path))
    assert task.data == {
        "when": "2024-01-02 03:04:05.000000Z",
        "day": "2024-01-02",
        "price": "1.50",
        "kind": "easy",
        "half": 1.5,
        "days": ["2024-01-02", None],
        "pair": [1, 2],
        "object": {"a": "2", "b": [True, None]},
        "map": {"k": "2024-01-02"},
        "large": 2**64 - 1,
        "nothing": None,
    }
    assert msgspec.json.decode(msgspec.json.encode(task), type=Task) == task
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=Task) == task


@pytest.mark.parametrize(
    ("column", "held"),
    [
        (pa.array([b"png"]), "binary"),
        (pa.array([{"bytes": b"png", "path": "a.png"}]), "struct<bytes: binary"),
        (pa.array([datetime.timedelta(1)]), "duration"),
        (pa.array([[(1, "a")]], pa.map_(pa.int8(), pa.string())), "map<int8"),
    ],
)
def test_columns_that_json_has_no_word_for_are_refused(tmp_path, column, held):
    error = refusal(write_parquet(tmp_path / "a.parquet", pa.table({"prompt": ["a"], "image": column})))
    assert "column 'image'" in error.problem
    assert held in error.problem
    assert "leave that column out" in error.remedy


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (pa.table({"question": ["a"], "n": [1]}), "has no column 'prompt'; name one of ['question', 'n']"),
        (pa.table({"prompt": [1]}), "holds int64, but a prompt is text or chat messages"),
        (pa.table({"prompt": [["a"]]}), "but a prompt is text or chat messages"),
    ],
)
def test_a_table_without_prompts_is_refused(tmp_path, table, told):
    error = refusal(write_parquet(tmp_path / "a.parquet", table))
    assert error.place == "tasks.train[0].columns.prompt"
    assert told in str(error)


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.table([["a"], [1], [2]], names=["prompt", "n", "n"])
    assert "two columns with the same name" in str(refusal(write_parquet(tmp_path / "a.parquet", table)))


def test_a_split_is_chosen_by_name(tmp_path):
    hub = tmp_path / "hub"
    write_parquet(hub / "data" / "train-00000-of-00002.parquet", ROWS[:3])
    write_parquet(hub / "data" / "train-00001-of-00002-a09b74b3ef9c3b56.parquet", ROWS[3:])
    write_parquet(hub / "data" / "test-00000-of-00001.parquet", ROWS[:1])
    (hub / "README.md").write_text("# data")
    write_parquet(hub / ".cache" / "train-00000-of-00001.parquet", ROWS)
    saved = save_dict_to_disk(tmp_path / "saved", train=ROWS, test=ROWS[:1])
    for folder in (hub, saved):
        assert tasks_of(read(folder, split="train")) == TASKS
        assert tasks_of(read(folder, split="test")) == TASKS[:1]
        assert read(folder, split="test").name == f"{folder.name}:test"
        error = refusal(folder)
        assert (error.place, error.remedy) == ("tasks.train[0].split", "set it to one of test, train")
        assert "no split 'tset'" in refusal(folder, split="tset").problem


def test_a_split_where_there_is_none_is_refused(tmp_path):
    for path in (write_jsonl(tmp_path / "a.jsonl"), save_to_disk(tmp_path / "saved")):
        error = refusal(path, split="train")
        assert (error.place, error.remedy) == ("tasks.train[0].split", "leave it out")
    assert tasks_of(read(save_to_disk(tmp_path / "named", _split="train"), split="train")) == TASKS


def test_one_split_in_several_folders_or_formats_is_refused(tmp_path):
    write_parquet(tmp_path / "hub" / "main" / "train-00000-of-00001.parquet")
    write_parquet(tmp_path / "hub" / "socratic" / "train-00000-of-00001.parquet")
    error = refusal(tmp_path / "hub", split="train")
    assert "main/*.parquet or" in error.problem
    assert "name one of these folders" in error.remedy
    assert tasks_of(read(tmp_path / "hub" / "main")) == TASKS
    write_jsonl(tmp_path / "hub" / "main" / "train.jsonl")
    assert "main/*.jsonl or" in refusal(tmp_path / "hub" / "main").problem


def test_what_is_not_there_or_not_known_is_refused(tmp_path):
    assert "there is no" in refusal(tmp_path / "none.jsonl").problem
    assert ".parquet" in refusal(tmp_path / "none.jsonl").remedy
    assert "is a folder without tasks" in refusal(tmp_path).problem
    (tmp_path / "a.csv").write_text("prompt,answer\n1+1,2\n")
    error = refusal(tmp_path / "a.csv")
    assert "has an unknown format" in error.problem
    assert all(known in error.remedy for known in (".jsonl", ".parquet", "save_to_disk"))
    (tmp_path / "b.parquet").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1")
    assert "git lfs pull" in refusal(tmp_path / "b.parquet").remedy
    (tmp_path / "c.parquet").write_text("{}")
    assert "is not a Parquet file" in refusal(tmp_path / "c.parquet").problem
    (tmp_path / "d.json").write_text('\n [{"prompt": "a"}, {"prom')
    assert "begins as one JSON array, and is none" in refusal(tmp_path / "d.json").problem
    (tmp_path / "e.jsonl").write_bytes('{"prompt": "a"}'.encode("utf-16"))
    assert "UTF-16" in refusal(tmp_path / "e.jsonl").problem
    (tmp_path / "f.json").write_text(json.dumps({"version": 1, "data": [{"prompt": "a"}]}, indent=1))
    assert "is one JSON object, whose rows may be those under 'data'" in refusal(tmp_path / "f.json").problem


def test_torn_files_are_refused(tmp_path):
    whole = write_parquet(tmp_path / "a.parquet").read_bytes()
    (tmp_path / "torn.parquet").write_bytes(whole[: len(whole) // 2])
    assert "cannot read" in refusal(tmp_path / "torn.parquet").problem
    saved = save_to_disk(tmp_path / "saved", shards=1)
    (shard,) = saved.glob("*.arrow")
    shard.write_bytes(shard.read_bytes()[:100])
    assert f"cannot read {shard}" in refusal(saved).problem
    shard.unlink()
    assert f"cannot read {shard}" in refusal(saved).problem
    (saved / "state.json").write_text("{}")
    assert "state.json" in refusal(saved).problem


def test_rows_that_an_old_release_kept_the_order_of_apart_are_refused(tmp_path):
    saved = save_to_disk(tmp_path / "saved", _indices_data_files=[{"filename": "indices.arrow"}])
    assert "flatten_indices" in refusal(saved).remedy


def test_what_happens_to_a_file_later_does_not_reach_the_run(tmp_path):
    for path in (write_jsonl(tmp_path / "a.jsonl"), write_parquet(tmp_path / "a.parquet")):
        source = read(path)
        path.write_bytes(b"")
        assert tasks_of(source) == TASKS


def test_the_fingerprint_notices_a_changed_file(tmp_path):
    def fingerprint(path: Path) -> str:
        return TaskStream([read(path)], seed=0).fingerprint()

    changed = [*ROWS[:3], {**ROWS[3], "answer": -1}, *ROWS[4:]]
    for write in (write_jsonl, write_parquet):
        path = write(tmp_path / "a.x")
        before = fingerprint(path)
        assert fingerprint(path) == before
        assert fingerprint(write(tmp_path / "a.x", changed)) != before
    before = fingerprint(save_to_disk(tmp_path / "saved"))
    assert fingerprint(save_to_disk(tmp_path / "saved", changed)) != before
