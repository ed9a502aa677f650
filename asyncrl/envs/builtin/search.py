"""Built-in environment: questions whose answers stand in a corpus, which the model searches and reads.

The corpus is a JSON-lines file on the machine where generators run, indexed once in each of them; without one it is a small made
corpus on people, with questions. Tasks from files have the expected answer in the column ``answer``: a text, or a list of texts
of which each is right.
"""

import re
import string
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.builtin.corpus import Index, read_corpus
from asyncrl.envs.builtin.made_corpus import documents, questions
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.hosting.tool_messages import ToolError
from asyncrl.envs.stated_answer import stated_answer
from asyncrl.envs.tool_marks import tool
from asyncrl.envs.tools import ToolEnvironment

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = re.compile(rf"(?<!\S)-(?=\d)|(?<=\d)\.(?=\d)|([{re.escape(string.punctuation)}])")
"""In the group, what is left out. Signs and points of numbers stay: 15 is neither 1.5 nor -15."""


class Search(ToolEnvironment):
    """The model searches documents, reads them, and answers a question.

    Args:
        corpus: path of a JSON-lines file with the keys ``id``, ``text`` and, if there is one, ``title``; the made one if empty.
        score: ``exact`` gives 1 for the expected answer, up to case, punctuation and articles; ``f1`` the overlap in words.
        snippet_words: words of each document that a search shows, about the best match; 0 shows titles only.
    """

    def __init__(
        self,
        corpus: str = "",
        score: Literal["exact", "f1"] = "exact",
        snippet_words: Annotated[int, Meta(ge=0, le=64)] = 16,
    ) -> None:
        self._score = exact_match if score == "exact" else f1
        self._snippet_words = snippet_words

    @classmethod
    @asynccontextmanager
    async def share(cls, **options: Any) -> AsyncIterator[Index]:
        """Index the corpus."""
        index = await run_in_daemon_thread(partial(_index, options.get("corpus", "")), name="indexing the corpus")
        try:
            yield index
        finally:
            index.close()

    @tool
    def search(self, query: str, k: Annotated[int, Meta(ge=1, le=20)] = 5) -> str:
        """The best matching documents, each with its id and title."""
        found = self.shared.search(query, k, self._snippet_words)
        return (
            "\n".join(": ".join(filter(None, (f"[{each.id}] {each.title}".rstrip(), each.snippet))) for each in found)
            or "nothing found"
        )

    @tool
    def read(self, id: str) -> str:
        """The text of the document with this id."""
        document = self.shared.read(id) or self.shared.read(id.strip().removeprefix("[").removesuffix("]"))
        if document is None:
            raise ToolError(f"there is no document {short(id)}; give an id that a search has shown")
        return str(document.text)

    def reward(self, task: Task, answer: str) -> float:
        """How well what ``answer`` states matches the best of the expected ones."""
        stated = stated_answer(answer)
        return max(self._score(expected, stated) for expected in expected_answers(task))

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> Sequence[Task]:
        """Make questions on the made corpus; those on another corpus come from files."""
        if options.get("corpus"):
            raise NotImplementedError
        return questions(split, count, seed)


def _index(corpus: str) -> Index:
    return Index(read_corpus(Path(corpus)) if corpus else documents())


def expected_answers(task: Task) -> Sequence[str]:
    """Return the right answers of a task.

    Raises:
        EnvironmentBroken: its ``answer`` is neither a text nor a list of texts.
    """
    answer = task.data.get("answer")
    answers = [answer] if isinstance(answer, str) else answer
    if not isinstance(answers, list) or not answers or not all(isinstance(each, str) and normalised(each) for each in answers):
        problem = f"task {task.id}: its answer is {short(answer)}"
        raise EnvironmentBroken(f"{problem}; put a text, or a list of texts, into the column `answer`")
    return answers


def normalised(text: str) -> str:
    """Return ``text`` in lower case, without punctuation, articles and superfluous space (Rajpurkar et al. 2016, SQuAD)."""
    plain = _PUNCTUATION.sub(lambda found: "" if found[1] else found[0], text.lower())
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(expected: str, answer: str) -> float:
    """1 if the two are the same after normalisation, else 0."""
    return float(normalised(expected) == normalised(answer))


def f1(expected: str, answer: str) -> float:
    """The harmonic mean of the shares of words that the two have in common."""
    wanted, given = Counter(normalised(expected).split()), Counter(normalised(answer).split())
    common = (wanted & given).total()
    return 2 * common / (wanted.total() + given.total()) if common else 0.0
