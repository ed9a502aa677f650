"""A worker's environments: what is shared is entered once and left, and ends the work if it is lost; secrets are not shown."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.errors import DeadlineExceeded, EnvironmentBroken, ProcessDied, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import ToolCall
from asyncrl.core.recipe.environment import (
    ClassEnvironmentConfig,
    EnvironmentConfig,
    MixedEnvironmentConfig,
    RemoteEnvironmentConfig,
)
from asyncrl.core.task import Task
from asyncrl.envs import Action, StepResult, ToolEnvironment, ToolError, tool
from asyncrl.envs.hosting import workspaces
from asyncrl.envs.hosting.hosted import HostedEnvironment
from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
from asyncrl.envs.load import load_members
from asyncrl.envs.secrets import Secrets, clean_logs, read_secrets

VALUE = "s3cret-value"


class Desk(ToolEnvironment):
    """Notes what happens to what its episodes share."""

    happened: ClassVar[list[str]] = []

    def __init__(self, name: str = "desk") -> None:
        self.key = self.secrets.get("KEY")

    @classmethod
    @asynccontextmanager
    async def share(cls, name: str, secrets: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        entering = asyncio.current_task()
        cls.happened.append(f"enter {name}")
        yield {"name": name, "key": secrets.get("KEY")}
        assert asyncio.current_task() is entering
        cls.happened.append(f"leave {name}")

    @tool
    async def leak(self, how: str) -> str:
        """Shows a secret where it should not."""
        if how == "refuse":
            raise ToolError(f"refused with {self.key}")
        raise RuntimeError(f"failed with {self.key}")

    @tool
    def write(self, text: str) -> str:
        """Writes a file."""
        (self.workspace / "file").write_text(text)
        return (self.workspace / "file").read_text()

    def reward(self, task: Task, answer: str) -> float:
        raise ValueError(f"no reward for {self.key}")


class Failing(Desk):
    @classmethod
    @asynccontextmanager
    async def share(cls, **options: Any) -> AsyncIterator[None]:
        raise OSError(f"no server at {VALUE}")
        yield


class Endless(Desk):
    @classmethod
    @asynccontextmanager
    async def share(cls, **options: Any) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


class SlowToGiveUp(Desk):
    """Is never set up, and takes a moment to clean up what there is of it."""

    @classmethod
    @asynccontextmanager
    async def share(cls, **options: Any) -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            await asyncio.sleep(0.05)
            Desk.happened.append("cleaned up")


class Crashing(Desk):
    """What it shares ends by itself, as a task group does whose task fails."""

    crash: ClassVar[asyncio.Event]

    @classmethod
    @asynccontextmanager
    async def share(cls, **options: Any) -> AsyncIterator[None]:
        cls.crash = asyncio.Event()

        async def serve() -> None:
            await cls.crash.wait()
            raise ConnectionError("the server is gone")

        async with asyncio.TaskGroup() as group:
            group.create_task(serve())
            yield


class NoContext(Desk):
    @classmethod
    async def share(cls, **options: Any) -> None:  # type: ignore[override]
        return None


class Board(ToolEnvironment):
    """Plays on what its task and its options say, and keeps no copy."""

    def __init__(self, moves: list[str], rules: dict[str, Any] = {}) -> None:  # noqa: B006 - what is tested
        self.moves, self.rules = moves, rules

    @tool
    def take(self) -> str:
        """Takes a stone."""
        self.moves.append("take")
        self.rules.setdefault("taken", []).append(len(self.moves))
        self.rules["named"] = True
        self.task.data["heaps"][0]["stones"] -= 1
        return f"{self.moves} {self.rules} {self.task.data}"

    def reward(self, task: Task, answer: str) -> float:
        return float(task.data["heaps"][0]["stones"])


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(workspaces, "default_root", lambda: tmp_path / "workspaces")
    Desk.happened.clear()
    return tmp_path / "workspaces"


def of_class(kind: type[Desk], **keys: Any) -> ClassEnvironmentConfig:
    return ClassEnvironmentConfig(name=f"{__name__}:{kind.__name__}", secrets=("KEY",), **keys)


def opened(config: EnvironmentConfig) -> WorkerEnvironments:
    return WorkerEnvironments(load_members(config), read_secrets(config, {"KEY": VALUE}), "generator-1")


def task(member: str = "") -> Task:
    return Task(id=TaskId("t"), prompt="t", environment=member)


def folders(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()]


async def test_each_member_is_entered_and_left_once_and_plays_its_own_tasks():
    config = MixedEnvironmentConfig(
        members={"a": of_class(Desk, options={"name": "A"}), "b": of_class(Desk, options={"name": "B"})}
    )
    environments = opened(config)
    await environments.start(60.0)
    made = [environments.make(task(member)) for member in "aba"]
    assert [each.shared["name"] for each in made] == ["A", "B", "A"]
    assert made[0].shared is made[2].shared
    assert made[0].shared["key"] == VALUE
    assert sorted(Desk.happened) == ["enter A", "enter B"]
    with pytest.raises(EnvironmentBroken, match="task t names environment 'c'; there are 'a', 'b'"):
        environments.make(task("c"))
    closing = asyncio.create_task(environments.close(60.0))  # in another task than start
    await closing
    assert sorted(Desk.happened) == ["enter A", "enter B", "leave A", "leave B"]


@pytest.mark.parametrize("options", [{"moves": ["begin"]}, {"moves": ["begin"], "rules": {"taken": []}}])
async def test_what_an_episode_does_to_its_task_and_options_no_other_one_sees(options: dict[str, Any]):
    """The episodes of a group play one task, and all of a worker have one recipe."""
    environments = opened(ClassEnvironmentConfig(name=f"{__name__}:Board", options=options))
    await environments.start(60.0)
    played = Task(id=TaskId("t"), prompt="t", data={"heaps": [{"stones": 3}]})
    seen = []
    for _ in range(2):
        hosted = HostedEnvironment(environments.make(played), played)
        await hosted.reset()
        seen.append((await hosted.step(Action("", (ToolCall("take", {}),)))).observation.messages[0].content)
        assert (await hosted.step(Action("done", ()))).reward == 2.0
        await hosted.close(5.0)
    await environments.close(60.0)
    assert seen[0] == seen[1]
    assert played.data == {"heaps": [{"stones": 3}]}


async def test_a_workspace_is_made_when_asked_for_and_goes_with_its_episode(root: Path):
    environments = opened(of_class(Desk))
    await environments.start(60.0)
    (worker,) = folders(root)
    quiet, writing = (HostedEnvironment(environments.make(task()), task()) for _ in range(2))
    for each in (quiet, writing):
        await each.reset()
    result = await writing.step(Action("", (ToolCall("write", {"text": "kept for now"}),)))
    assert result.observation.messages[0].content == "kept for now"
    assert len(folders(worker)) == 1
    for each in (quiet, writing):
        await each.close(60.0)
    assert not folders(worker)
    await environments.close(60.0)
    assert not folders(root)


async def test_no_error_shows_a_secret(caplog: pytest.LogCaptureFixture):
    environments = opened(of_class(Desk))
    await environments.start(60.0)
    hosted = HostedEnvironment(environments.make(task()), task())
    await hosted.reset()
    leaks = tuple(ToolCall("leak", {"how": how}) for how in ("refuse", "fail"))
    told: StepResult = await hosted.step(Action("", leaks))
    assert [message.content for message in told.observation.messages] == [
        "error: refused with <KEY>",
        "error: RuntimeError: failed with <KEY>",
    ]
    with pytest.raises(EnvironmentBroken) as broken:
        await hosted.step(Action("the answer", ()))
    shown = [*map(str, told.calls), *map(str, told.errors), *(each.traceback for each in told.errors), str(broken.value)]
    shown += [str(broken.value.raised), broken.value.raised.traceback if broken.value.raised else ""]
    assert all(VALUE not in text for text in shown)
    assert "no reward for <KEY>" in str(broken.value)
    await environments.close(60.0)


def test_what_is_logged_shows_no_secret():
    handler = logging.StreamHandler()
    clean_logs(Secrets({"KEY": VALUE}), [handler])
    try:
        raise ValueError(f"in a traceback: {VALUE}")
    except ValueError as error:
        record = logging.LogRecord("a", logging.INFO, "b", 1, f"{VALUE} and %s", (VALUE,), (ValueError, error, None))
    assert VALUE not in handler.format(record)
    assert handler.format(record).startswith("<KEY> and <KEY>")


@given(st.dictionaries(st.sampled_from("ABCD"), st.text(min_size=4)), st.lists(st.text()))
def test_a_cleaned_text_has_no_value_and_keeps_all_else(values: dict[str, str], texts: list[str]):
    secrets = Secrets({f"<{name}>" * 3: value for name, value in values.items() if not set(value) & set("<>ABCD")})
    dirty = "".join(f"{text}{value}" for text, value in zip(texts, secrets.values(), strict=False))
    assert all(value not in secrets.clean(dirty) for value in secrets.values())
    assert repr(secrets) == f"Secrets({', '.join(secrets)})"
    assert all(text in secrets.clean(text) for text in texts if not any(value in text for value in secrets.values()))


@pytest.mark.parametrize("variables", [{}, {"KEY": ""}])
def test_a_secret_that_is_not_set_is_refused_with_its_place(variables: dict[str, str]):
    with pytest.raises(RecipeError, match=r"environment\.members\.a: the environment variable KEY is .*; export KEY="):
        read_secrets(MixedEnvironmentConfig(members={"a": of_class(Desk)}), variables)


def test_a_token_that_no_header_can_have_is_refused_with_its_place():
    remote = RemoteEnvironmentConfig(urls=("ws://127.0.0.1:1",), token_variable="KEY")
    with pytest.raises(RecipeError, match=r"environment: the value of KEY has a space, a line's end"):
        read_secrets(remote, {"KEY": "a key\r"})


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (Failing, r"share\(\) of .*Failing could not be set up: it raised OSError: no server at <KEY> \(.*test_worker"),
        (NoContext, r"share\(\) returned .* decorate it with @classmethod and @contextlib.asynccontextmanager"),
    ],
)
async def test_what_cannot_be_set_up_is_told_and_the_others_are_torn_down(kind: type[Desk], problem: str):
    environments = opened(MixedEnvironmentConfig(members={"good": of_class(Desk), "bad": of_class(kind)}))
    with pytest.raises(EnvironmentBroken, match=problem):
        await environments.start(60.0)
    assert Desk.happened == ["enter desk", "leave desk"]


async def test_a_set_up_that_does_not_end_is_given_up_by_name():
    with pytest.raises(DeadlineExceeded, match=r"generator-1 waited 0.05 s for share\(\) of .*Endless"):
        await opened(of_class(Endless)).start(0.05)


async def test_a_set_up_that_is_given_up_cleans_up_first():
    with pytest.raises(DeadlineExceeded):
        await opened(of_class(SlowToGiveUp)).start(0.05)
    assert Desk.happened == ["cleaned up"]


async def test_a_shared_part_that_ends_by_itself_ends_the_work():
    environments = opened(of_class(Crashing))
    await environments.start(60.0)
    assert await environments.while_shared(asyncio.sleep(0, "done")) == "done"
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    Crashing.crash.set()
    with pytest.raises(ProcessDied, match=r"what its episodes share is gone: share\(\) of .*Crashing"):
        await environments.while_shared(work())
    await asyncio.wait_for(cancelled.wait(), 60)
    await environments.close(60.0)
