"""Searching and reading a corpus: any query is fine, answers are compared as people would, bad corpora are named by line."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import ToolCall
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs import Action
from asyncrl.envs.builtin.corpus import CorpusError, Document, Index, read_corpus
from asyncrl.envs.builtin.search import Search, exact_match, f1
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.lessons.find_lessons import find_lessons
from asyncrl.envs.load import load_member, make_tasks
from asyncrl.envs.secrets import Secrets

DOCUMENTS = [
    Document("a", "The Nile is a river in Africa. It is the longest river.", "Nile"),
    Document("b", "A river that flows through Cairo is called Nile by its people.", "Cairo"),
    Document("c", "The Amazon carries more water than any other river.", "Amazon"),
    Document("d", "Zürich lies at a lake."),
]
INDEX = Index(DOCUMENTS)


def found(query: str, count: int = 5, words: int = 16) -> list[str]:
    return [each.id for each in INDEX.search(query, count, words)]


def test_the_best_match_comes_first_and_titles_count_more():
    assert found("nile") == ["a", "b"]
    assert found("amazon water") == ["c"]
    assert set(found("which river?")) == {"a", "b", "c"}
    assert found("river", count=1) == found("river")[:1]
    assert found("zurich") == ["d"]
    assert found("zebras") == []


@given(st.text())
def test_any_text_can_be_searched_for(query: str):
    assert len(INDEX.search(query, 3, 8)) <= 3
    assert INDEX.read(query) is None or query in "abcd"


@pytest.mark.parametrize(
    "query", ['"', "nile AND", "NEAR(nile", "title:nile", "nile*", "-nile", "'; DROP TABLE texts", "x" * 100_000]
)
def test_operators_of_the_index_are_only_words(query: str):
    assert set(found(query)) <= {"a", "b"}
    assert INDEX.read("a") == DOCUMENTS[0]


@asynccontextmanager
async def environment(tmp_path: Path, **options: object) -> AsyncIterator[Search]:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        '{"id": 7, "title": "Nile", "text": "It is the longest river of Africa.", "year": 3}\n\n{"id": "[b] [1]", "text": "B"}'
    )
    member = load_member(ClassEnvironmentConfig(name="search", options={"corpus": str(corpus), **options}))
    async with member.share(Secrets()) as shared:
        made = member.make(Provided(shared=shared))
        assert isinstance(made, Search)
        yield made


async def test_an_episode(tmp_path: Path):
    async with environment(tmp_path, snippet_words=3) as search:
        await search.reset(Task(id=TaskId("1"), prompt="Which river?", data={"answer": ["The Nile", "Nil"]}))
        calls = (ToolCall("search", {"query": "longest"}), ToolCall("search", {"query": "sea", "k": 1}))
        result = await search.step(Action("", calls))
        assert [message.content for message in result.observation.messages] == [
            "[7] Nile:  ... the longest river ... ",
            "nothing found",
        ]
        result = await search.step(Action("", (ToolCall("read", {"id": "[7]"}), ToolCall("read", {"id": "8"}))))
        read, missing = (message.content for message in result.observation.messages)
        assert (read, missing) == (
            "It is the longest river of Africa.",
            "error: there is no document '8'; give an id that a search has shown",
        )
        ids = ("[[b] [1]]", "[b] [1]")
        result = await search.step(Action("", tuple(ToolCall("read", {"id": id}) for id in ids)))
        assert [message.content for message in result.observation.messages] == ["B", "B"]
        assert (await search.step(Action("nile.", ()))).reward == 1.0
        said = (
            "<think>The Amazon?</think>The Nile",
            "<think>\nno\n</think>\nIt is <answer> Nil </answer>",
            "<think>Nil</think>Po",
        )
        assert [search.reward(search.task, each) for each in said] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("answer", [None, "", "the", [], [""], ["a", 3], 3])
async def test_a_task_without_an_answer_breaks_its_environment(tmp_path: Path, answer: object):
    async with environment(tmp_path) as search:
        await search.reset(Task(id=TaskId("1"), prompt="Which river?", data={"answer": answer}))
        with pytest.raises(EnvironmentBroken, match="column `answer`"):
            await search.step(Action("Nile", ()))


@pytest.mark.parametrize(
    ("expected", "answer", "exact", "overlap"),
    [
        ("Nile", "the nile!", 1, 1),
        ("Nile", "the Nile river", 0, 2 / 3),
        ("Nile", "", 0, 0),
        ("U.S.", "us", 1, 1),
        ("a b a", "b", 1, 1),
        ("Oslo", "Bern", 0, 0),
        ("1.5", "15", 0, 0),
        ("-5", "5", 0, 0),
        ("$1,500.5.", "1500.5", 1, 1),
        ("1939-1945", "19391945", 1, 1),
    ],
)
def test_scores(expected: str, answer: str, exact: float, overlap: float):
    assert exact_match(expected, answer) == exact
    assert f1(expected, answer) == pytest.approx(overlap)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("", "holds no document"),
        ('{"id": 1, "text": "a"}\n{"id": "1", "text": "b"}', r"line 2: id '1' is that of line 1"),
        ('{"id": 1}', "line 1: .*text.*write each line as"),
        ('{"id": 1, "text": 3}', "line 1: .*write each line as"),
        ('{"id": 1, "text": " "}', "line 1: document '1' has no text"),
        ("[]", "line 1"),
        ('{"id": 1, "text": "a"}\n{"id"', "line 2"),
        ("\x00", "line 1"),
    ],
)
def test_a_bad_corpus_is_named_by_line(tmp_path: Path, lines: str, problem: str):
    path = tmp_path / "corpus.jsonl"
    path.write_text(lines)
    with pytest.raises(CorpusError, match=problem):
        list(read_corpus(path))


def test_a_missing_corpus_and_other_encodings(tmp_path: Path):
    with pytest.raises(CorpusError, match="No such file"):
        list(read_corpus(tmp_path / "none"))
    (tmp_path / "windows").write_bytes(b'\xef\xbb\xbf{"id": 1, "text": "a"}\r\n')
    assert list(read_corpus(tmp_path / "windows")) == [Document("1", "a")]
    (tmp_path / "latin").write_bytes('{"id": 1, "text": "Zürich"}'.encode("latin-1"))
    with pytest.raises(CorpusError, match="line 1"):
        list(read_corpus(tmp_path / "latin"))


def test_ones_own_corpus_has_no_tasks_and_no_lessons(tmp_path: Path):
    own = ClassEnvironmentConfig(name="search", options={"corpus": "mine.jsonl"})
    assert find_lessons(own) is None
    with pytest.raises(RecipeError, match=r"tasks.kind.*makes no tasks of its own; use `files`"):
        make_tasks(own, "train", 3, 0)


@pytest.mark.parametrize("options", [{"score": "fuzzy"}, {"snippet_words": 65}, {"corpus": 3}, {"corpora": "a"}])
def test_wrong_options_are_refused(options: dict[str, object]):
    with pytest.raises(RecipeError, match=r"environment\.options"):
        load_member(ClassEnvironmentConfig(name="search", options=options))
