"""Scores from an actor, and from a real HTTP server in a thread, which answers as it is told."""

import asyncio
import json
import math
import socket
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayActorError
from short_episodes import episode

from asyncrl.core.errors import ComponentFailed, FailureKind, ProcessDied, RecipeError, ScoringFailed
from asyncrl.core.ids import TaskId
from asyncrl.core.recipe.reward import RemoteRewardConfig
from asyncrl.core.task import Task
from asyncrl.envs.secrets import Secrets
from asyncrl.run.recipe.compose import compose
from asyncrl.run.reward.scorers import ModelScorer, RemoteScorer
from asyncrl.run.reward.service_tokens import service_tokens

MINUTE = 60.0
KEYS = Secrets({"REWARD_KEY": "sesame-7"})
TASK = Task(id=TaskId("t"), prompt="1+1", data={"answer": "2"})

Blocks = Generator[bytes, None, None]
Reply = Callable[[list[dict[str, Any]]], tuple[int, bytes] | Blocks]
"""From the episodes of a request to status and body, or to all that is sent, headers included, as long as it can be."""


def lengths(episodes: list[dict[str, Any]]) -> tuple[int, bytes]:
    return 200, json.dumps({"scores": [len(episode["text"]) for episode in episodes]}).encode()


def says(status: int, body: str) -> Reply:
    return lambda episodes: (status, body.encode())


class Remote:
    """An actor's method as its handle offers it."""

    def __init__(self, method: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.remote = method


class Service:
    """Gives each request the next of ``replies``, and the last one ever after."""

    def __init__(self, replies: Sequence[Reply], key: str = "") -> None:
        self._replies, self._lock = list(replies), threading.Lock()
        self.key = key
        self.requests: list[list[dict[str, Any]]] = []
        self.running = self.most = 0
        self.gate = threading.Event()
        self.gate.set()

    def answer(self, episodes: list[dict[str, Any]]) -> tuple[int, bytes] | Blocks:
        with self._lock:
            self.requests.append(episodes)
            reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
            self.running += 1
            self.most = max(self.most, self.running)
        self.gate.wait(MINUTE)
        with self._lock:
            self.running -= 1
        return reply(episodes)


@contextmanager
def serving(service: Service, port: int = 0) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            read = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = service.answer(read["episodes"])
            if not isinstance(answer, tuple):
                with closing(answer):
                    for block in answer:
                        self.wfile.write(block)
                return
            status, body = answer
            if service.key and self.headers["Authorization"] != f"Bearer {service.key}":
                status = 403
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            pass  # who asked has hung up

    server = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        service.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


def scorer(port: int, deadline_s: float = MINUTE, **keys: Any) -> RemoteScorer:
    reward = RemoteRewardConfig(url=f"http://127.0.0.1:{port}/score", **{"timeout_s": MINUTE, **keys})
    return RemoteScorer(reward, KEYS, lambda ids: " ".join(map(str, ids)), deadline_s, first_retry_s=0.01)


async def test_a_service_sees_the_episode_and_each_gets_its_own_score() -> None:
    service = Service([lengths])
    with serving(service) as port:
        asked = scorer(port)
        scores = await asyncio.gather(*(asked.score(TASK, episode(index)) for index in range(40)))
    assert scores == [len(" ".join(map(str, range(3 + index)))) for index in range(40)]
    assert all(len(request) <= 32 for request in service.requests)
    (first,) = [episode for request in service.requests for episode in request if episode["turns"] == ["2"]]
    assert first == {
        "task_id": "t",
        "prompt": "1+1",
        "data": {"answer": "2"},
        "text": "0 1 2",
        "turns": ["2"],
        "reward": 0.5,
        "stop_reason": "environment_done",
        "metrics": {},
    }


async def test_a_service_that_wants_a_key_gets_it() -> None:
    with serving(Service([lengths], key="sesame-7")) as port:
        assert await scorer(port, token_variable="REWARD_KEY").score(TASK, episode(0)) == 5
        with pytest.raises(ComponentFailed, match=r"status 403.*; name the environment variable .* as reward\.token_variable"):
            await scorer(port).score(TASK, episode(0))
    with (
        serving(Service([says(401, "no such key: sesame-7")])) as port,
        pytest.raises(ComponentFailed, match="status 401: 'no such key: <token>'; export its key"),
    ):
        await scorer(port, token_variable="REWARD_KEY").score(TASK, episode(0))


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"TEACHER_KEY": "b"}, r"reward\.token_variable: the environment variable REWARD_KEY is not set; export REWARD_KEY="),
        ({"REWARD_KEY": "a", "TEACHER_KEY": ""}, r"algorithm\.teacher\.token_variable: the environment variable .* is empty"),
        ({"REWARD_KEY": "a\n", "TEACHER_KEY": "b"}, r"reward\.token_variable: the value of REWARD_KEY has a space, a line's end"),
    ],
)
def test_keys_of_services_come_from_the_environment_and_are_shown_nowhere(variables: dict[str, str], problem: str) -> None:
    url = "url: 'http://127.0.0.1:1/'"
    keys = [f"+reward={{kind: remote, {url}, token_variable: REWARD_KEY}}"]
    keys += [f"+algorithm.teacher={{{url}, token_variable: TEACHER_KEY}}"]
    recipe = compose("quickstart", keys)
    given = {"REWARD_KEY": "sesame-7", "TEACHER_KEY": "sesame-8"}
    found = service_tokens(recipe, given)
    assert dict(found) == given
    assert "sesame" not in f"{recipe!r}{found!r}"
    with pytest.raises(RecipeError, match=problem):
        service_tokens(recipe, variables)
    assert not service_tokens(compose("quickstart", []), {})


async def test_requests_overlap_and_are_batched_as_the_recipe_says() -> None:
    service = Service([lengths])
    service.gate.clear()
    with serving(service) as port:
        asked = scorer(port, batch_size=4, requests=2)
        scores = [asyncio.create_task(asked.score(TASK, episode(0))) for _ in range(18)]
        async with asyncio.timeout(MINUTE):
            while service.running < 2:  # noqa: ASYNC110 - counted in another thread
                await asyncio.sleep(0.001)
        service.gate.set()
        assert await asyncio.gather(*scores) == [5] * 18
    assert service.most == 2
    assert sorted(map(len, service.requests)) == [2, 4, 4, 4, 4]


PASSING = {
    "an error": says(500, "boom"),
    "overload": says(429, "later"),
    "garbage": says(200, "<html>"),
    "another shape": says(200, '{"score": [1]}'),
    "no number": says(200, '{"scores": ["good"]}'),
    "a nest": says(200, "[" * 60_000),
    "too much": says(200, '{"scores": [5]}' + " " * (64 * 1024 + 64)),
}


@pytest.mark.parametrize("trouble", PASSING.values(), ids=PASSING)
async def test_what_passes_is_asked_again(trouble: Reply) -> None:
    service = Service([trouble, trouble, lengths])
    with serving(service) as port:
        assert await scorer(port).score(TASK, episode(0)) == 5
    assert len(service.requests) == 3


async def test_a_service_that_is_down_and_comes_up_again_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as held:  # nobody listens there, and nobody else can
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        asking = asyncio.create_task(scorer(port).score(TASK, episode(0)))
        async with asyncio.timeout(MINUTE):
            while "it is asked again" not in caplog.text:  # noqa: ASYNC110 - logged, and nothing else
                await asyncio.sleep(0.001)
        assert not asking.done()
    with serving(Service([lengths]), port):
        assert await asking == 5


async def test_waiting_for_a_turn_counts() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        asked = scorer(held.getsockname()[1], deadline_s=0.3, batch_size=2, requests=1)
        began = asyncio.get_running_loop().time()
        scores = await asyncio.gather(*(asked.score(TASK, episode(0)) for _ in range(400)), return_exceptions=True)
        assert asyncio.get_running_loop().time() - began < 30, "200 turns of 0.3 s"
    assert all(isinstance(score, ScoringFailed) and score.kind is FailureKind.INFRASTRUCTURE for score in scores)


async def test_a_slow_answer_is_given_up_and_asked_for_again() -> None:
    service = Service([lengths])
    service.gate.clear()
    with serving(service) as port:
        asking = asyncio.create_task(scorer(port, timeout_s=0.2).score(TASK, episode(0)))
        async with asyncio.timeout(MINUTE):
            while len(service.requests) < 2:  # noqa: ASYNC110 - counted in another thread
                await asyncio.sleep(0.001)
        service.gate.set()
        assert await asking == 5


@pytest.mark.parametrize(("trouble", "told"), [(says(503, "no GPU"), "503: 'no GPU'"), (says(200, "<html>"), "no scores")])
async def test_an_outage_beyond_the_deadline_is_the_infrastructure_s_failure(trouble: Reply, told: str) -> None:
    with serving(Service([trouble])) as port:
        asked = scorer(port, deadline_s=1.0)
        outcomes = await asyncio.gather(*(asked.score(TASK, episode(index)) for index in range(3)), return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, ScoringFailed)
        assert outcome.kind is FailureKind.INFRASTRUCTURE
        assert told in str(outcome)
        assert f"127.0.0.1:{port}" in str(outcome)
        assert "deadlines.reward" in str(outcome)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (says(404, "what?"), "refuses .* 404: 'what\\?'"),
        (says(200, '{"scores": [1, 2]}'), "answered 2 scores for 1 episodes"),
        (says(200, '{"scores": []}'), "answered 0 scores for 1 episodes"),
    ],
)
async def test_what_will_not_pass_is_refused_at_once(reply: Reply, told: str) -> None:
    service = Service([reply])
    with serving(service) as port, pytest.raises(ComponentFailed, match=told):
        await scorer(port).score(TASK, episode(0))
    assert len(service.requests) == 1


@pytest.mark.parametrize("score", ["null", "NaN"])
async def test_a_score_that_is_none_is_not_a_number(score: str) -> None:
    with serving(Service([says(200, f'{{"scores": [{score}]}}')])) as port:
        assert math.isnan(await scorer(port).score(TASK, episode(0)))


class Endless:
    """A reply that goes on until who asked hangs up; a byte at a time, if it drips."""

    def __init__(self, head: bytes, block: bytes, *, drips: bool = False) -> None:
        self._head, self._block, self._drips = head, block, drips
        self.hung_up = threading.Event()

    def __call__(self, episodes: list[dict[str, Any]]) -> Blocks:
        try:
            yield self._head
            while True:
                yield self._block
                if self._drips:
                    self.hung_up.wait(0.005)
        finally:
            self.hung_up.set()


@pytest.mark.parametrize(
    ("head", "block", "drips", "told"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n", b" " * 65536, False, "it answered more than 65600 bytes"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1000000000000\r\n\r\n", b" " * 65536, False, "more than 65600 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", False, "more than 65600 bytes"),
        (b"HTTP/1.0 100 Continue\r\n", b"\r\nHTTP/1.0 100 Continue\r\n", False, "it could not be reached"),
        (b"HTTP/1.0 200 OK\r\n\r\n", b" ", True, "did not answer within reward.timeout_s 0.2 s"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n", b" ", True, "did not answer within reward.timeout_s 0.2 s"),
        (b"HTTP/1.0 200 OK\r\nKey: ", b"a", True, "did not answer within reward.timeout_s 0.2 s"),
    ],
)
async def test_an_endless_answer_is_read_no_further_and_asked_for_again(
    head: bytes, block: bytes, drips: bool, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    endless = Endless(head, block, drips=drips)
    with serving(Service([endless, lengths])) as port:
        before = threading.enumerate()
        assert await scorer(port, timeout_s=0.2 if drips else MINUTE).score(TASK, episode(0)) == 5
        assert told in caplog.text
        assert await asyncio.to_thread(endless.hung_up.wait, MINUTE)
        for thread in threading.enumerate():
            if thread.name == "asking for scores" and thread not in before:
                thread.join(MINUTE)
                assert not thread.is_alive()


async def test_of_an_endless_refusal_the_beginning_is_told() -> None:
    endless = Endless(b"HTTP/1.0 404 Not Found\r\n\r\n", b"what? " * 1000)
    with serving(Service([endless])) as port, pytest.raises(ComponentFailed, match=r"refuses .* 404: 'what"):
        await scorer(port).score(TASK, episode(0))
    assert await asyncio.to_thread(endless.hung_up.wait, MINUTE)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirection_is_refused_and_not_followed(status: int) -> None:
    def elsewhere(episodes: list[dict[str, Any]]) -> Blocks:
        yield f"HTTP/1.0 {status} Elsewhere\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n".encode()

    service = Service([elsewhere, lengths])
    with serving(service) as port, pytest.raises(ComponentFailed, match=f"refuses .* status {status}"):
        await scorer(port).score(TASK, episode(0))
    assert len(service.requests) == 1


class FakeModel:
    """The handle of a reward model's actor: scores a row by its length."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.calls: list[int] = []
        self.gate = asyncio.Event()
        self._trouble = trouble
        self.score = Remote(self._score)

    async def _score(self, rows: Sequence[np.ndarray]) -> list[float]:
        self.calls.append(len(rows))
        await self.gate.wait()
        if self._trouble is not None:
            raise self._trouble
        return [float(len(row)) for row in rows]


async def test_the_model_gets_tokens_and_those_that_come_meanwhile_together() -> None:
    model = FakeModel()
    asked = ModelScorer(model, "generator-0", MINUTE)
    first = asyncio.create_task(asked.score(TASK, episode(0)))
    async with asyncio.timeout(MINUTE):
        while not model.calls:  # noqa: ASYNC110 - counted in the actor
            await asyncio.sleep(0)
    others = [asyncio.create_task(asked.score(TASK, episode(index))) for index in range(1, 6)]
    await asyncio.sleep(0)
    model.gate.set()
    assert await asyncio.gather(first, *others) == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert model.calls == [1, 5]


async def test_a_model_that_dies_ends_the_run_and_no_generator() -> None:
    model = FakeModel(RayActorError())
    model.gate.set()
    with pytest.raises(ComponentFailed, match="the reward model to score 1 episodes: its process died") as caught:
        await ModelScorer(model, "generator-0", MINUTE).score(TASK, episode(0))
    assert not isinstance(caught.value, ProcessDied)


async def test_a_model_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    model = FakeModel()
    asked = ModelScorer(model, "generator-0", 0.05)
    with pytest.raises(ScoringFailed, match=r"generator-0 waited .* for the reward model.*deadlines\.reward") as caught:
        await asked.score(TASK, episode(0))
    assert caught.value.kind is FailureKind.INFRASTRUCTURE
    model.gate.set()
    asked._deadline_s = MINUTE
    assert await asked.score(TASK, episode(1)) == 4.0
