"""Data sets of the hub: fetched from a server that answers as the hub does, at the commit that the recipe's run began with."""

import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loopback_hub import Hub, loopback_hub

from asyncrl.buffers.journal.unchangeable_keys import Identity
from asyncrl.buffers.tasks import hub_datasets
from asyncrl.buffers.tasks.hub_datasets import is_on_hub, pinned
from asyncrl.buffers.tasks.task_files import read_sources
from asyncrl.buffers.tasks.task_stream import TaskSource
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.tasks import FileTasksConfig, TaskFileConfig
from asyncrl.run.buffer.tasks import make_task_stream, with_pinned_data_sets
from asyncrl.run.recipe.compose import compose

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with loopback_hub(tmp_path, monkeypatch) as server:
        yield server


def parquet(*rows: dict[str, object]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    return sink.getvalue().to_pybytes()


def lines(*rows: dict[str, object]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def read(path: str, **keys: object) -> TaskSource:
    (source,) = read_sources([TaskFileConfig(path=path, **keys)], "tasks.train", "refuse")
    return source


def prompts(source: TaskSource) -> list[object]:
    return [source.tasks[index].prompt for index in range(len(source.tasks))]


CARD = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/train-*
---
# About
"""
GSM8K = {
    "README.md": CARD.encode(),
    "main/train-00000-of-00002.parquet": parquet({"question": "1+1?", "answer": "1+1=2\n#### 2"}),
    "main/train-00001-of-00002.parquet": parquet({"question": "2+2?", "answer": "#### 4"}),
    "main/test-00000-of-00001.parquet": parquet({"question": "3+3?", "answer": "#### 6"}),
    "socratic/train-00000-of-00001.parquet": parquet({"question": "Why?", "answer": "#### 0"}),
}
ASKED = {"columns": {"prompt": "question"}}


def test_a_split_of_a_subset_is_fetched_and_nothing_else(hub: Hub) -> None:
    hub.publish("acme/gsm8k", OLD, GSM8K)
    source = read("acme/gsm8k", subset="main", split="train", **ASKED)
    assert (source.name, prompts(source)) == ("gsm8k:main:train", ["1+1?", "2+2?"])
    assert source.tasks[1].id == "gsm8k:main:train/main/train-00001-of-00002.parquet:0"
    assert source.tasks[0].data == {"answer": "1+1=2\n#### 2"}
    assert not any("test-" in path or "socratic" in path for path in hub.fetched)


def test_which_subset_or_split_is_meant_is_asked_for_by_name(hub: Hub) -> None:
    hub.publish("acme/gsm8k", OLD, GSM8K)
    for keys, place, told in (
        ({"split": "train"}, "tasks.train[0].subset", "has several subsets; set it to one of main, socratic"),
        ({"subset": "other"}, "tasks.train[0].subset", "has no subset 'other'"),
        ({"subset": "main"}, "tasks.train[0].split", "has several splits; set it to one of train, test"),
        ({"subset": "main", "split": "dev"}, "tasks.train[0].split", "has no split 'dev'"),
    ):
        with pytest.raises(RecipeError) as caught:
            read("acme/gsm8k", **keys, **ASKED)
        assert caught.value.place == place
        assert told in str(caught.value)


def test_files_without_a_card_are_sorted_by_their_names(hub: Hub) -> None:
    hub.publish(
        "acme/plain",
        OLD,
        {"data/train-00000-of-00001.parquet": parquet({"prompt": "a"}), "data/test.jsonl": lines({"prompt": "b"})},
    )
    assert prompts(read("acme/plain", split="train")) == ["a"]
    assert prompts(read("acme/plain", split="test")) == ["b"]
    hub.publish("acme/one", OLD, {"all.json": json.dumps([{"prompt": "c"}]).encode(), "dataset_infos.json": b"{}"})
    assert prompts(read("acme/one")) == ["c"]
    hub.publish("acme/script", OLD, {"script.py": b""})
    hub.publish("acme/script", NEW, {"default/train/0000.parquet": parquet({"prompt": "d"})}, "refs/convert/parquet")
    with pytest.raises(RecipeError, match="name acme/script@refs/convert/parquet"):
        read("acme/script")
    assert prompts(read("acme/script@refs/convert/parquet")) == ["d"]


def test_a_pinned_data_set_stays_as_it_was_and_is_read_without_a_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish("acme/set", OLD, {"train.jsonl": lines({"prompt": "old"})})
    path = pinned("acme/set", "path")
    assert path == f"acme/set@{OLD}"
    hub.publish("acme/set", NEW, {"train.jsonl": lines({"prompt": "new"})})
    before, now = read(path), read("acme/set")
    assert (before.name, prompts(before), prompts(now)) == ("set", ["old"], ["new"])
    assert now.name == before.name, "the stream of a resumed run is the same"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub.fetched.clear()
    assert prompts(read(path)) == ["old"]
    assert pinned(path, "path") == path
    assert pinned("acme/set", "path") == f"acme/set@{NEW}"
    assert not hub.fetched


def test_a_run_keeps_the_commit_that_it_began_with(hub: Hub) -> None:
    hub.publish("acme/set", OLD, {"train.jsonl": lines({"prompt": "old"}), "test.jsonl": lines({"prompt": "x"})})
    files = "train: [{path: acme/set, split: train}], evaluation: [{path: acme/set, split: test}]"
    asked = compose("quickstart", ["~tasks", f"+tasks={{kind: files, {files}}}"])
    began = with_pinned_data_sets(asked)
    assert isinstance(began.tasks, FileTasksConfig)
    assert {file.path for file in (*began.tasks.train, *began.tasks.evaluation)} == {f"acme/set@{OLD}"}
    before = Identity.of(asked, make_task_stream(asked))
    hub.publish("acme/set", NEW, {"train.jsonl": lines({"prompt": "new"}), "test.jsonl": lines({"prompt": "x"})})
    assert Identity.of(began, make_task_stream(began)) == before
    assert Identity.of(asked, make_task_stream(asked)).tasks != before.tasks


def test_a_hub_that_does_not_answer_is_not_needed_for_what_is_here(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish("acme/set", OLD, {"train.jsonl": lines({"prompt": "old"})})
    read("acme/set")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert prompts(read("acme/set")) == ["old"]
    with pytest.raises(RecipeError, match="is not in the cache of this machine, and the Hugging Face hub cannot be reached"):
        read("acme/other")


def test_what_the_hub_does_not_have_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish("acme/set", OLD, {"train.jsonl": lines({"prompt": "a"})})
    with pytest.raises(RecipeError, match="'acme/none', and the Hugging Face hub has no data set acme/none"):
        read("acme/none")
    with pytest.raises(RecipeError, match="acme/set has no such revision on the Hugging Face hub"):
        read("acme/set@v2")
    monkeypatch.setattr(hub_datasets, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="is not installed; correct the path, or run `pip install huggingface_hub`"):
        read("acme/set")


def test_what_is_here_comes_first_and_files_are_no_ids(hub: Hub, tmp_path: Path) -> None:
    assert is_on_hub("acme/set")
    assert not is_on_hub("data/train.jsonl")
    (tmp_path / "acme" / "set").mkdir(parents=True)
    (tmp_path / "acme" / "set" / "train.jsonl").write_bytes(lines({"prompt": "here"}))
    assert not is_on_hub("acme/set")
    assert prompts(read("acme/set")) == ["here"]
    assert pinned("acme/set", "path") == "acme/set"
    assert not hub.fetched
