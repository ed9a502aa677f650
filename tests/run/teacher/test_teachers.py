"""Log-probabilities from a teacher's engines, and from a real HTTP server in a thread, which answers as it is told."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayActorError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from asyncrl.core.errors import ComponentFailed, FailureKind, ProcessDied, RecipeError, ScoringFailed
from asyncrl.core.recipe.teacher import TeacherConfig
from asyncrl.envs.secrets import Secrets
from asyncrl.run.teacher.remote_teacher import RemoteTeacher, check_server
from asyncrl.run.teacher.teachers import EngineTeacher

MINUTE = 60.0
ROW = np.array([5, 7, 9], np.int32)


class Remote:
    """An actor's method as its handle offers it."""

    def __init__(self, method: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.remote = method


class FakeEngine:
    """The handle of a teacher's engine: every token has minus its id as log-probability."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.tokens = 0
        self.gate, self._trouble = asyncio.Event(), trouble
        self.logprobs = Remote(self._logprobs)

    async def _logprobs(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        self.tokens += sum(map(len, rows))
        await self.gate.wait()
        if self._trouble is not None:
            raise self._trouble
        return [-row[1:].astype(np.float32) for row in rows]


async def test_rows_go_to_the_engine_with_the_least_to_do() -> None:
    engines = [FakeEngine(), FakeEngine()]
    teacher = EngineTeacher(engines, "generator-0", MINUTE)
    rows = [np.arange(length, dtype=np.int32) for length in (10, 3, 3, 3, 10)]
    asking = [asyncio.create_task(teacher.logprobs(row)) for row in rows]
    for engine in engines:
        engine.gate.set()
    assert [found.tolist() for found in await asyncio.gather(*asking)] == [(-row[1:]).tolist() for row in rows]
    assert [engine.tokens for engine in engines] == [10, 19]


async def test_an_engine_that_dies_ends_the_run_and_no_generator() -> None:
    engine = FakeEngine(RayActorError())
    engine.gate.set()
    with pytest.raises(ComponentFailed, match="teacher-0 to look at 1 trajectories: its process died") as caught:
        await EngineTeacher([engine], "generator-0", MINUTE).logprobs(ROW)
    assert not isinstance(caught.value, ProcessDied)


async def test_an_engine_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    teacher = EngineTeacher([FakeEngine()], "generator-0", 0.05)
    with pytest.raises(ScoringFailed, match=r"generator-0 waited .* for teacher-0.*deadlines\.reward") as caught:
        await teacher.logprobs(ROW)
    assert caught.value.kind is FailureKind.INFRASTRUCTURE


Reply = Callable[[str, dict[str, Any]], tuple[int, Any]]
"""From the path and the body of a request to the status and the JSON of the answer."""


@contextmanager
def serving(*replies: Reply, key: str = "") -> Iterator[str]:
    """A server that gives each request the next of the replies, and the last one ever after; to whoever has the key."""
    left = list(replies)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
            status, answer = (left.pop(0) if len(left) > 1 else left[0])(self.path, body)
            if key and self.headers["Authorization"] != f"Bearer {key}":
                status, answer = 401, {"error": "Unauthorized"}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sound(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """As vLLM's server answers: the first token has no log-probability, and others may come beside the token's own."""
    assert path == "/v1/completions"
    assert body["prompt_logprobs"] == 0
    given = [{"1": {"logprob": 0.5}, str(token): {"logprob": -float(token), "rank": 3}} for token in body["prompt"][1:]]
    return 200, {"choices": [{"text": "x", "prompt_logprobs": [None, *given]}]}


def remote(url: str, deadline_s: float = MINUTE) -> RemoteTeacher:
    return RemoteTeacher(TeacherConfig(url=url), Secrets(), "generator-0", deadline_s, first_retry_s=0.01)


@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
async def test_a_server_is_asked_for_the_tokens_own_log_probabilities(suffix: str) -> None:
    with serving(sound) as url:
        assert (await remote(url + suffix).logprobs(ROW)).tolist() == [-7.0, -9.0]


async def test_what_passes_is_asked_again() -> None:
    with serving(lambda path, body: (503, "later"), lambda path, body: (200, {"choices": "?"}), sound) as url:
        assert (await remote(url).logprobs(ROW)).tolist() == [-7.0, -9.0]


def of_other_tokens(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    return sound(path, {**body, "prompt": [5, 7, 8]})


def of_fewer_tokens(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    return sound(path, {**body, "prompt": [5, 7]})


@pytest.mark.parametrize("reply", [of_other_tokens, of_fewer_tokens, lambda path, body: (200, {"choices": []})])
async def test_an_answer_for_other_tokens_ends_the_run(reply: Reply) -> None:
    with serving(reply) as url, pytest.raises(ComponentFailed, match="it must be a vLLM server, and leave prompts as they are"):
        await remote(url).logprobs(ROW)


async def test_a_server_that_is_gone_is_the_infrastructure_s_failure() -> None:
    with serving(lambda path, body: (500, "boom")) as url, pytest.raises(ScoringFailed, match="500: '\"boom\"'") as caught:
        await remote(url, deadline_s=0.3).logprobs(ROW)
    assert caught.value.kind is FailureKind.INFRASTRUCTURE


WORDS = {f"w{number}": number for number in range(40)}


def tokenizer(folder: Path) -> Tokenizer:
    made = Tokenizer(WordLevel(WORDS, unk_token="w0"))
    made.save(str(folder / "tokenizer.json"))
    return made


def knows(words: Tokenizer, longest: int, swapped: bool = False) -> Reply:
    def reply(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "teacher", "max_model_len": longest}]}
        if path == "/v1/completions":
            return sound(path, body)
        ids = [{17: 18, 18: 17}.get(each, each) if swapped else each for each in body["tokens"]]
        return 200, {"prompt": "  ".join(words.decode([each]) for each in ids)}

    return reply


async def test_a_server_with_the_policys_tokens_is_taken(tmp_path: Path) -> None:
    with serving(lambda path, body: (503, "loading"), knows(tokenizer(tmp_path), 65)) as url:
        await check_server(TeacherConfig(url=url), Secrets(), tmp_path, 64, MINUTE)


@pytest.mark.parametrize(
    ("longest", "swapped", "problem"),
    [
        (64, False, "serves at most 64 tokens, and needs one more than model.max_context 64.*--max-model-len 65"),
        (99, True, "has another text for id 17, which is 'w17' for the policy.*with the policy's tokenizer"),
    ],
)
async def test_a_server_that_does_not_suit_the_policy_is_refused(
    tmp_path: Path, longest: int, swapped: bool, problem: str
) -> None:
    with serving(knows(tokenizer(tmp_path), longest, swapped)) as url, pytest.raises(RecipeError, match=problem) as caught:
        await check_server(TeacherConfig(url=url), Secrets(), tmp_path, 64, MINUTE)
    assert caught.value.place == "algorithm.teacher.url"


KEY, VARIABLE = "sesame-7", "TEACHER_KEY"


async def test_a_server_that_wants_a_key_gets_it(tmp_path: Path) -> None:
    """It is in an environment variable, which the recipe names."""
    named, key = {"token_variable": VARIABLE}, Secrets({VARIABLE: KEY})
    with serving(knows(tokenizer(tmp_path), 65), key=KEY) as url:
        with pytest.raises(
            RecipeError, match=r"^algorithm\.teacher\.token_variable: .*status 401.*; name the environment variable"
        ):
            await check_server(TeacherConfig(url=url), Secrets(), tmp_path, 64, MINUTE)
        with pytest.raises(
            RecipeError, match=r"status 401.*; export its key in the environment variable that algorithm\.teacher"
        ):
            await check_server(TeacherConfig(url=url, **named), Secrets({VARIABLE: "another"}), tmp_path, 64, MINUTE)
        await check_server(TeacherConfig(url=url, **named), key, tmp_path, 64, MINUTE)
    with serving(sound, key=KEY) as url:
        asked = RemoteTeacher(TeacherConfig(url=url, **named), key, "generator-0", MINUTE)
        assert (await asked.logprobs(ROW)).tolist() == [-7.0, -9.0]
        with pytest.raises(ComponentFailed, match=r"refuses the request.*as algorithm\.teacher\.token_variable"):
            await remote(url).logprobs(ROW)


def only_says(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """As servers of completions do that know no ``prompt_logprobs``."""
    return 200, {"data": [{"id": "teacher"}]} if path == "/v1/models" else {"choices": [{"text": "x"}]}


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (lambda path, body: (404, "what?"), "refuses the request: it answered status 404"),
        (lambda path, body: (200, {"data": 3}), "cannot be used: its answer holds no models"),
        (only_says, "cannot be used: its answer holds no prompt_logprobs"),
    ],
)
async def test_something_that_is_no_such_server_is_refused_at_once(tmp_path: Path, reply: Reply, problem: str) -> None:
    refusal = rf"algorithm\.teacher\.url: the teacher at .* {problem}.*; name a vLLM server that is up"
    with serving(reply) as url, pytest.raises(RecipeError, match=refusal):
        await check_server(TeacherConfig(url=url), Secrets(), tmp_path, 64, MINUTE)
    with pytest.raises(RecipeError, match="cannot be used: it could not be reached"):
        await check_server(TeacherConfig(url=url), Secrets(), tmp_path, 64, MINUTE)
