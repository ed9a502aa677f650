"""Environments of other projects, each played as its authors' code plays it, where its package is installed."""

import asyncio
import contextlib
import gc
import os
import socket
import sys
import time
import types
from collections.abc import Sequence
from functools import partial

import pytest

from asyncrl.core.errors import EnvironmentBroken, EnvironmentLost, RecipeError
from asyncrl.core.messages import CallOutcome, MalformedCall, ToolCall
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.base import Action, Environment, Fault, StepResult
from asyncrl.envs.load import load_member
from asyncrl.envs.other_projects.sources import SOURCES, source_named


def member(source: str, name: str, **options: object):
    pytest.importorskip(SOURCES[source].module)
    return load_member(
        ClassEnvironmentConfig(name=SOURCES[source].environment, options={SOURCES[source].option: name, **options})
    )


async def play(environment: Environment, task: Task, turns: Sequence[Action]) -> tuple[str, list[StepResult]]:
    """The last message of the observation, and what came of each turn until the end."""
    try:
        observation = await environment.reset(task)
        results = []
        for turn in turns:
            results.append(await environment.step(turn))
            if results[-1].done:
                break
        return observation.messages[-1].content, results
    finally:
        await environment.close()


def act(*actions: object) -> Action:
    return Action("", tuple(ToolCall("act", {"action": each}) for each in actions))


async def test_gym_acts_by_names_and_shows_what_it_renders():
    lake = member("gym", "FrozenLake-v1", arguments={"is_slippery": False}, actions=["left", "down", "right", "up"])
    (task,) = lake.make_tasks("train", 1, 3)
    broken = Action("", (MalformedCall("act(", "no end"), ToolCall("jump", {}), ToolCall("act", {"action": "fly"})))
    way = act("down", "down", "right", "right", "down", "right", "up")
    seen, (talk, wrong, end) = await play(lake.make(), task, [Action("hm", ()), broken, way])
    assert seen == "Play FrozenLake-v1.\n[S]FFF\nFHFH\nFFFH\nHFFG"
    assert (talk.fault, talk.observation.messages[0].content) == (Fault.MALFORMED_CALL, "Act by calling `act`.")
    assert [message.content for message in wrong.observation.messages] == [
        "error: no end",
        "error: there is no tool 'jump', only 'act'",
        "error: 'fly' is no action; choose one of left, down, right, up",
    ]
    assert (end.reward, end.done, end.metrics["reached_end"], len(end.calls)) == (1.0, True, 1.0, 7)
    assert end.observation.messages[-1].content == "The episode is over."
    assert not {each.data["seed"] for each in lake.make_tasks("train", 50, 3)} & {
        each.data["seed"] for each in lake.make_tasks("evaluation", 50, 3)
    }


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("NoSuchGame-v1", {}, "gymnasium cannot make 'NoSuchGame-v1'"),
        ("NoSuchGame-v1", {}, "; gymnasium.pprint_registry"),
        ("FrozenLake-v1", {"arguments": {"nope": 1}}, "unexpected keyword argument 'nope'.*; correct its arguments"),
        ("FrozenLake-v1", {"actions": ["left"]}, "1 names are given, and there are 4 actions"),
    ],
)
def test_what_gym_cannot_play_is_refused_before_the_run(name: str, options: dict[str, object], problem: str):
    with pytest.raises(RecipeError, match=problem):
        member("gym", name, **options).make_tasks("train", 1, 0)


@pytest.mark.parametrize(
    ("space", "action", "read"),
    [
        ("Discrete(4)", 2, 2),
        ("Discrete(4)", 2.0, 2),
        ("Discrete(4)", "2", 2),
        ("Discrete(4)", 2.5, "2.5 is no whole number"),
        ("Discrete(4)", float("inf"), "inf is no whole number"),
        ("Discrete(4)", 4, "4 is no action; choose one of Discrete(4)"),
        ("Discrete(4)", 10**20, "100000000000000000000 is no action; choose one of Discrete(4)"),
        ("Discrete(4)", 10**400, f"1{'0' * 56}... is no action; choose one of Discrete(4)"),
        ("MultiDiscrete([3, 2])", [1, 1.0], [1, 1]),
        ("MultiDiscrete([3, 2])", [1.9, 0.2], "[1.9, 0.2] is no action; choose one of MultiDiscrete([3 2])"),
        ("MultiDiscrete([3, 2])", [10**20, 0], "[100000000000000000000, 0] is no action; choose one of MultiDiscrete([3 2])"),
        ("MultiBinary(2)", [0, 1], [0, 1]),
        ("MultiBinary(2)", [0, 0.5], "[0, 0.5] is no action; choose one of MultiBinary(2)"),
        ("MultiBinary(2)", [0, 256], "[0, 256] is no action; choose one of MultiBinary(2)"),
        ("Box(-np.inf, np.inf, (1,))", [0.5], [0.5]),
        ("Box(-np.inf, np.inf, (1,))", [float("inf")], "[inf] is no action; choose one of Box(-inf, inf, (1,), float32)"),
        ("Box(-np.inf, np.inf, (1,))", [1e300], "[1e+300] is no action; choose one of Box(-inf, inf, (1,), float32)"),
        ("Text(3)", "ab", "ab"),
        ("Text(3)", 5, "5 is no action; choose one of Text(1, 3, charset="),
    ],
)
async def test_whatever_the_policy_writes_gym_takes_it_as_it_stands_or_not_at_all(space: str, action: object, read: object):
    gymnasium = pytest.importorskip("gymnasium")
    np = pytest.importorskip("numpy")
    taken = []

    class Takes(gymnasium.Env):
        action_space = eval(space, {**vars(gymnasium.spaces), "np": np})
        observation_space = gymnasium.spaces.Discrete(1)

        def reset(self, seed=None, options=None):
            return 0, {}

        def step(self, value):
            taken.append(value.tolist() if hasattr(value, "tolist") else value)
            return 0, 1.0, True, False, {"its size": 10**400, "taken": 1}

    gymnasium.registry.pop("Takes-v0", None)
    gymnasium.register("Takes-v0", entry_point=lambda **_: Takes(), disable_env_checker=True)
    played = member("gym", "Takes-v0")
    (task,) = played.make_tasks("train", 1, 0)
    _, (result,) = await play(played.make(), task, [act(action)])
    if isinstance(read, str) and not taken:
        assert result.observation.messages[0].content.startswith(f"error: {read}")
        assert (result.fault, result.done) == (Fault.MALFORMED_CALL, False)
    else:
        assert taken == [read]
        assert (result.reward, result.metrics) == (1.0, {"taken": 1.0, "reached_end": 1.0})


async def test_what_a_game_of_textarena_cannot_read_is_the_policys_fault(monkeypatch: pytest.MonkeyPatch):
    game = member("textarena", "GuessTheNumber-v0")
    (task,) = game.make_tasks("train", 1, 5)
    _, (large,) = await play(game.make(), task, [Action(f"[{'9' * 5000}]", ())])
    assert (large.fault, large.done) == (Fault.MALFORMED_CALL, False)
    assert "the game cannot read this: 'Exceeds the limit" in large.observation.messages[0].content
    monkeypatch.setattr("textarena.core.State.close", lambda self: (None, {}))
    with pytest.raises(EnvironmentBroken, match="GuessTheNumber-v0 ended and gave its player no reward"):
        await play(game.make(), task, [Action("[0]", ())] * 30)


async def test_textarena_plays_a_game_of_words_to_its_end_and_alike_with_the_same_seed(monkeypatch: pytest.MonkeyPatch):
    game = member("textarena", "GuessTheNumber-v0")
    (task,) = game.make_tasks("train", 1, 5)
    guesses = [Action(f"[{number}]", ()) for number in range(1, 21)]
    seen, results = await play(game.make(), task, guesses)
    assert "You are playing Guess The Number" in seen
    assert results[-1].done
    assert not any(result.done for result in results[:-1])
    again = await play(game.make(), task, guesses)
    assert [each.observation for each in again[1]] == [each.observation for each in results]
    assert again[1][-1].reward == results[-1].reward
    with pytest.raises(RecipeError, match="TextArena has no game 'Go-v9'"):
        member("textarena", "Go-v9").make_tasks("train", 1, 0)
    with pytest.raises(RecipeError, match="TicTacToe-v0 cannot be played by one player"):
        member("textarena", "TicTacToe-v0").make_tasks("train", 1, 0)
    with pytest.raises(RecipeError, match=r"TowerOfHanoi-v0 cannot be made: .*'nope'; correct its arguments \({'nope': 1}\)"):
        member("textarena", "TowerOfHanoi-v0", arguments={"nope": 1}).make_tasks("train", 1, 0)
    monkeypatch.setattr("nltk.data.path", [])
    with pytest.raises(
        RecipeError, match=r"Wordle-v0 lacks something: .* bring its words where the server runs: `python -m nltk"
    ):
        member("textarena", "Wordle-v0").make_tasks("train", 1, 0)


@pytest.mark.parametrize(("source", "name"), [("textarena", "GuessTheNumber-v0"), ("skyrl-gym", "gsm8k")])
async def test_a_call_where_there_are_no_tools_is_told_and_what_stands_beside_it_is_not_played(source: str, name: str):
    task = Task(id="t", prompt="6*7?", data={"seed": 5, "reward_spec": {"method": "rule", "ground_truth": "42"}})
    calls = (ToolCall("guess", {"number": 5}), MalformedCall("guess(", "no end"))
    _, (told,) = await play(member(source, name).make(), task, [Action("#### 42 [42]", calls)])
    assert (told.reward, told.done, told.fault) == (0.0, False, Fault.MALFORMED_CALL)
    assert [each.outcome for each in told.calls] == [CallOutcome.MALFORMED] * 2
    assert told.observation.messages[0].content.startswith("error: there are no tools; write what you do as text")


async def test_skyrl_gym_gets_the_tasks_data_as_its_extras():
    sums = member("skyrl-gym", "gsm8k")
    task = Task(id="t", prompt="6*7?", data={"reward_spec": {"method": "rule", "ground_truth": "42"}})
    seen, (right,) = await play(sums.make(), task, [Action("so\n#### 42", ())])
    assert (seen, right.reward, right.done) == ("6*7?", 1.0, True)
    _, (wrong,) = await play(sums.make(), task, [Action("#### 41", ())])
    assert (wrong.reward, wrong.done) == (0.0, True)


async def test_skyrl_gym_gets_its_configuration_as_skyrl_has_it():
    pytest.importorskip("skyrl_gym")

    class Configured:
        def __init__(self, env_config, extras):
            self.reward = env_config.right

        def init(self, prompt):
            return prompt, {}

        def step(self, text):
            return {"observations": [], "reward": self.reward, "done": True}

        def get_metrics(self):
            return {}

        def close(self):
            pass

    made_module("made_configured", Configured=Configured)
    configured = member("skyrl-gym", "made_configured:Configured", env_config={"right": 0.5})
    _, (end,) = await play(configured.make(), Task(id="t", prompt="?"), [Action("", ())])
    assert end.reward == 0.5


@pytest.mark.parametrize(
    ("name", "problem"),
    [("nope", "No registered env"), ("made_none:Sums", "has no class 'Sums'"), ("no_module:Sums", "no_module")],
)
def test_what_skyrl_gym_does_not_have_is_refused_before_it_is_served(name: str, problem: str):
    pytest.importorskip("skyrl_gym")
    made_module("made_none")
    with pytest.raises(RecipeError, match=f"skyrl-gym has no environment '{name}': .*{problem}"):
        source_named("skyrl-gym").get_ready({"name": name})


@contextlib.asynccontextmanager
async def served_by_openenv(app: object):
    """The address of an app that OpenEnv has made, served by its own server."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


def adding_up_to_ten(rewards: Sequence[float | None], step_s: float = 0.0):
    """An app of OpenEnv that gives these rewards, one by one, or 1 where the sum is ten if there are none."""
    types_of = pytest.importorskip("openenv.core.env_server.types")
    interfaces = pytest.importorskip("openenv.core.env_server.interfaces")
    http_server = pytest.importorskip("openenv.core.env_server.http_server")
    base, given = {"__module__": __name__}, iter(rewards)
    add = type("Add", (types_of.Action,), base | {"__annotations__": {"number": int}})
    total = type("Total", (types_of.Observation,), base | {"__annotations__": {"total": int}})

    class Ten(interfaces.Environment):
        """Add numbers up to ten."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed=None, episode_id=None, **_):
            self.sum = 0
            return total(total=0, done=False, reward=0.0)

        def step(self, action, timeout_s=None, **_):
            time.sleep(step_s)
            self.sum += action.number
            reward = next(given) if rewards else float(self.sum == 10)
            return total(total=self.sum, done=self.sum >= 10, reward=reward)

        @property
        def state(self):
            return types_of.State()

    return http_server.create_fastapi_app(Ten, add, total)


FOUR_AND_SIX = [Action("", (ToolCall("act", {"number": number}),)) for number in (4, 6)]


@pytest.mark.parametrize(("rewards", "expected"), [([0.5, None], [0.5, 0.0]), ([None, 0.0], [0.0, 0.0]), ([None, None], None)])
async def test_an_episode_of_openenv_without_any_reward_is_none(rewards, expected):
    async with served_by_openenv(adding_up_to_ten(rewards)) as url:
        ten = member("openenv", url)
        playing = play(ten.make(), Task(id="t", prompt="?"), FOUR_AND_SIX)
        if expected is None:
            with pytest.raises(EnvironmentBroken, match=f"{url} ended the episode, and no observation of it had a reward"):
                await playing
        else:
            assert [result.reward for result in (await playing)[1]] == expected


async def test_an_action_of_openenv_that_takes_too_long_is_the_policys(monkeypatch: pytest.MonkeyPatch):
    client = pytest.importorskip("openenv.core.generic_client").GenericEnvClient
    original = client.__init__
    monkeypatch.setattr(client, "__init__", lambda self, **named: original(self, **named, message_timeout_s=0.5))
    async with served_by_openenv(adding_up_to_ten([], step_s=1.0)) as url:
        ten = member("openenv", url)
        _, (late,) = await play(ten.make(), Task(id="t", prompt="?"), FOUR_AND_SIX)
    assert (late.reward, late.done, late.fault, late.calls[0].outcome) == (0.0, True, Fault.TOOL_ERROR, CallOutcome.TIMEOUT)


async def test_a_session_for_which_openenv_has_no_room_says_so():
    async with served_by_openenv(adding_up_to_ten([])) as url:
        ten, task = member("openenv", url), Task(id="t", prompt="?")
        first = ten.make()
        await first.reset(task)
        for _ in range(20):  # now it refuses, now it has closed the connection before it was asked
            with pytest.raises(EnvironmentBroken, match=r"begins no episode: .*; give it room .*max_concurrent_envs"):
                await play(ten.make(), task, [])
        await first.close()


def refusing():
    """An app of OpenEnv whose action refuses by its types and by a validator, and whose environment raises at 13 and at 14."""
    types_of = pytest.importorskip("openenv.core.env_server.types")
    interfaces = pytest.importorskip("openenv.core.env_server.interfaces")
    http_server = pytest.importorskip("openenv.core.env_server.http_server")
    pydantic = pytest.importorskip("pydantic")

    class Guess(types_of.Action):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def _small(cls, value: int) -> int:
            if value > 100:
                raise ValueError("too large")
            return value

    class Guessing(interfaces.Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed=None, episode_id=None, **_):
            return types_of.Observation(done=False, reward=0.0)

        def step(self, action, timeout_s=None, **_):
            if action.number == 13:
                raise KeyError("no such room")
            if action.number == 14:
                types_of.State(step_count="many")
            return types_of.Observation(done=True, reward=1.0)

        @property
        def state(self):
            return types_of.State()

    return http_server.create_fastapi_app(Guessing, Guess, types_of.Observation)


async def test_an_action_that_openenv_refuses_is_the_policys_and_an_exception_of_its_environment_is_not():
    async with served_by_openenv(refusing()) as url:
        guessing = member("openenv", url)
        task = Task(id="t", prompt="?")

        def turns(*numbers: object) -> list[Action]:
            return [Action("", (ToolCall("act", {"number": each}),)) for each in numbers]

        seen, (unfit, right) = await play(guessing.make(), task, turns("many", 7))
        _, (refused,) = await play(guessing.make(), task, turns(101, 7))
        with pytest.raises(EnvironmentBroken, match=rf"of the OpenEnv server {url} failed at {{'number': 13}}: .*no such room"):
            await play(guessing.make(), task, turns(13, 7))
        with pytest.raises(EnvironmentBroken, match=rf"of the OpenEnv server {url} failed at {{'number': 14}}: "):
            await play(guessing.make(), task, turns(14, 7))
        _, (missing, more) = await play(guessing.make(), task, [Action("", (ToolCall("act", a),)) for a in ({}, {"far": 1})])
    assert seen == "Begin."
    assert unfit.observation.messages[0].content == "error: this is no action; its fields are number (integer)"
    assert (unfit.fault, unfit.done, right.reward) == (Fault.MALFORMED_CALL, False, 1.0)
    assert (refused.fault, refused.done, refused.reward) == (Fault.MALFORMED_CALL, True, 0.0)
    assert [each.fault for each in (missing, more)] == [Fault.MALFORMED_CALL] * 2
    assert "the server refused the action, and the episode is over" in refused.observation.messages[0].content


def with_tools():
    """An app of OpenEnv whose actions are calls of tools."""
    fastmcp = pytest.importorskip("fastmcp")
    environment = pytest.importorskip("openenv.core.env_server.mcp_environment").MCPEnvironment
    mcp_types = pytest.importorskip("openenv.core.env_server.mcp_types")
    types_of = pytest.importorskip("openenv.core.env_server.types")
    http_server = pytest.importorskip("openenv.core.env_server.http_server")

    class Doubling(environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            tools = fastmcp.FastMCP("doubling")

            @tools.tool
            def double(number: int) -> int:
                """Double a number."""
                if number > 100:
                    raise ArithmeticError("too large")
                return 2 * number

            @tools.tool
            def act(deed: str) -> str:
                """Do something."""
                return f"done: {deed}"

            super().__init__(tools)

        def reset(self, seed=None, episode_id=None, **_):
            self.calls = 0
            return types_of.Observation(done=False, reward=0.0)

        async def step_async(self, action, timeout_s=None, **named):
            seen = await super().step_async(action, timeout_s, **named)
            self.calls = getattr(self, "calls", 0) + 1
            return seen.model_copy(update={"done": self.calls == 3, "reward": 1.0})

        def _step_impl(self, action, timeout_s=None, **_):
            raise NotImplementedError

        @property
        def state(self):
            return types_of.State()

    return http_server.create_app(Doubling, mcp_types.CallToolAction, mcp_types.CallToolObservation, max_concurrent_envs=2)


async def test_tools_of_an_openenv_environment_are_shown_and_called_as_they_are():
    async with served_by_openenv(with_tools()) as url:
        environment = member("openenv", url).make()
        try:
            begun = await environment.reset(Task(id="t", prompt="?"))
            calls = [
                ToolCall("double", {"number": 4}),
                ToolCall("double", {"number": 101}),
                ToolCall("call_tool", {"tool_name": "double"}),
                ToolCall("act", {"deed": "bow"}),
            ]
            told = [await environment.step(Action("", ())), *[await environment.step(Action("", (call,))) for call in calls]]
        finally:
            await environment.close()
    assert [(tool.name, tool.description, set(tool.parameters["properties"])) for tool in begun.tools] == [
        ("double", "Double a number.", {"number"}),
        ("act", "Do something.", {"deed"}),
    ]
    said = [result.observation.messages[0].content for result in told]
    assert (said[0], said[1], said[3], said[4]) == (
        "Act by calling `double` or `act`.",
        "8",
        "error: there is no tool 'call_tool'",
        "done: bow",
    )
    assert [result.calls[0].outcome for result in told[1:]] == [
        CallOutcome.OK,
        CallOutcome.ERROR,
        CallOutcome.MALFORMED,
        CallOutcome.OK,
    ]
    assert [result.reward for result in told] == [0.0, 1.0, 1.0, 0.0, 1.0]
    assert told[-1].done


async def test_an_openenv_server_that_is_gone_is_no_fault_of_the_task():
    pytest.importorskip("openenv")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    ten = member("openenv", url)
    with pytest.raises(EnvironmentLost, match=f"the OpenEnv server {url} is gone: Cannot connect"):
        await play(ten.make(), Task(id="t", prompt="?"), [])
    with pytest.raises(RecipeError, match=f"{url} says of no actions: Cannot connect"):
        await asyncio.to_thread(ten.make_tasks, "train", 1, 0)


async def test_openenv_acts_by_the_fields_of_its_action_and_shows_the_observation():
    async with served_by_openenv(adding_up_to_ten([])) as url:
        ten = member("openenv", url, system_prompt="Ten, no more.")
        (task,) = await asyncio.to_thread(ten.make_tasks, "train", 1, 0)
        turns = FOUR_AND_SIX
        seen, (four, six) = await play(ten.make(), task, turns)
    assert seen == 'Begin.\n{"total":0}'
    assert (four.observation.messages[0].content, four.reward, four.done) == ('{"total":4}', 0.0, False)
    assert (six.reward, six.done) == (1.0, True)


async def test_verifiers_plays_its_own_rollout_and_its_rubric_names_the_metrics():
    vf = pytest.importorskip("verifiers")
    if not hasattr(vf, "load_environment"):
        pytest.skip("this is verifiers.v1")
    from datasets import Dataset

    def add(x: int, y: int) -> int:
        """Add two numbers."""
        return x + y

    def right(completion, answer, **_):
        return float(answer in str(completion[-1]["content"]))

    def load_environment(size: int):
        rows = Dataset.from_list([{"question": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(size)])
        return vf.ToolEnv(dataset=rows, tools=[add], max_turns=4, rubric=vf.Rubric(funcs=[right]))

    sys.modules["made_sums"] = types.ModuleType("made_sums")
    sys.modules["made_sums"].load_environment = load_environment
    sums = member("verifiers", "made-sums", arguments={"size": 20})
    source_named("verifiers").get_ready({"name": "made-sums", "arguments": {"size": 20}})
    (task,) = sums.make_tasks("train", 1, 0)
    number = int(task.question.split("+")[1].rstrip("?"))
    async with contextlib.AsyncExitStack() as stack:
        shared = await stack.enter_async_context(sums.share({}))
        environment = sums.make()
        environment.shared = shared
        turns = [
            Action("", (ToolCall("mul", {}),)),
            Action("", (ToolCall("add", {"x": number, "y": number}),)),
            Action(f"It is {2 * number}.", ()),
        ]
        seen, (unknown, called, end) = await play(environment, task, turns)
    assert seen == f"What is {number}+{number}?"
    assert unknown.observation.messages[0].content == "error: there is no tool 'mul', only add"
    assert (called.observation.messages[0].content, called.done) == (str(2 * number), False)
    assert (end.reward, end.done, end.metrics["right"]) == (1.0, True, 1.0)


async def test_a_rollout_of_verifiers_that_was_never_scored_has_no_reward(monkeypatch: pytest.MonkeyPatch):
    vf = pytest.importorskip("verifiers")
    if not hasattr(vf, "load_environment"):
        pytest.skip("this is verifiers.v1")
    from datasets import Dataset

    rows = Dataset.from_list([{"question": str(n), "answer": ""} for n in range(20)])
    rubric = vf.Rubric(funcs=[lambda completion: 1.0])
    made = made_module("made_unscored", load_environment=lambda: vf.SingleTurnEnv(dataset=rows, rubric=rubric))
    sums = member("verifiers", made)
    (task,) = sums.make_tasks("train", 1, 0)

    async def unscored(self, state):
        state["reward"] = None

    monkeypatch.setattr(vf.RubricGroup, "score_rollout", unscored)
    async with contextlib.AsyncExitStack() as stack:
        environment = sums.make()
        environment.shared = await stack.enter_async_context(sums.share({}))
        with pytest.raises(EnvironmentBroken, match=f"the rollout of {task.id} was not scored"):
            await play(environment, task, [Action("4", ())])


async def test_a_rollout_of_verifiers_leaves_no_connection_behind():
    vf = pytest.importorskip("verifiers")
    if not hasattr(vf, "load_environment"):
        pytest.skip("this is verifiers.v1")
    from datasets import Dataset

    rows = Dataset.from_list([{"question": str(n), "answer": ""} for n in range(20)])
    rubric = vf.Rubric(funcs=[lambda completion: 1.0])
    made = made_module("made_alone", load_environment=lambda: vf.SingleTurnEnv(dataset=rows, rubric=rubric))
    alone = member("verifiers", made)
    held = []
    gc.disable()  # it closes some, some time
    try:
        async with contextlib.AsyncExitStack() as stack:
            shared = await stack.enter_async_context(alone.share({}))
            for task in alone.make_tasks("train", 8, 0):
                environment = alone.make()
                environment.shared = shared
                await play(environment, task, [Action("4", ())])
                held.append(len(os.listdir("/proc/self/fd")))
    finally:
        gc.enable()
    assert held[-1] <= held[0] + 2  # one that the endpoint is about to close


async def test_what_the_rubric_of_verifiers_counts_as_0_because_it_raised_is_told():
    vf = pytest.importorskip("verifiers")
    if not hasattr(vf, "load_environment"):
        pytest.skip("this is verifiers.v1")
    from datasets import Dataset

    async def judged(completion):
        raise ConnectionError("the judge is away")

    def unsaid(completion):
        return None

    def right(completion, answer, **_):
        return 1.0

    def load_environment():
        rows = Dataset.from_list([{"question": str(n), "answer": ""} for n in range(20)])
        rubrics = vf.RubricGroup([vf.Rubric(funcs=[judged, unsaid]), vf.Rubric(funcs=[right])])
        alone = vf.SingleTurnEnv(dataset=rows, rubric=rubrics)
        return vf.EnvGroup([alone, vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[right]))])

    mixed = member("verifiers", made_module("made_raising", load_environment=load_environment))
    told = {}
    async with contextlib.AsyncExitStack() as stack:
        shared = await stack.enter_async_context(mixed.share({}))
        for task in mixed.make_tasks("train", 40, 0):
            environment = mixed.make()
            environment.shared = shared
            _, (end,) = await play(environment, task, [Action("4", ())])
            told[task.data["row"] < 20] = (end.reward, [(error.method, error.kind) for error in end.errors])
        strange = mixed.make()
        strange.shared = shared
        with pytest.raises(EnvironmentBroken, match="task 't' is no row of the environment's own"):
            await strange.reset(Task(id="t", prompt="?"))
    assert told == {True: (1.0, [("judged", "ConnectionError"), ("unsaid", "TypeError")]), False: (1.0, [])}


async def test_a_rubric_that_environments_of_verifiers_share_is_heard_once_and_its_metrics_keep_their_names():
    vf = pytest.importorskip("verifiers")
    if not hasattr(vf, "load_environment"):
        pytest.skip("this is verifiers.v1")
    from datasets import Dataset

    async def judged(completion):
        raise ConnectionError("the judge is away")

    def worth(completion, reward):
        return reward

    def load_environment():
        rows = Dataset.from_list([{"question": str(n), "answer": ""} for n in range(20)])
        both = vf.Rubric(funcs=[judged, partial(worth, reward=0.25), partial(worth, reward=0.5)])
        return vf.EnvGroup([vf.SingleTurnEnv(dataset=rows, rubric=both) for _ in range(2)])

    mixed = member("verifiers", made_module("made_sharing", load_environment=load_environment))
    async with contextlib.AsyncExitStack() as stack:
        environment = mixed.make()
        environment.shared = await stack.enter_async_context(mixed.share({}))
        _, (end,) = await play(environment, mixed.make_tasks("train", 1, 0)[0], [Action("4", ())])
    assert [error.method for error in end.errors] == ["judged"]
    assert end.reward == 0.75
    assert sorted(value for name, value in end.metrics.items() if "worth" in name) == [0.25, 0.5]


async def test_a_tool_of_verifiers_that_raises_is_a_tool_that_failed():
    vf = pytest.importorskip("verifiers")
    if not hasattr(vf, "load_environment"):
        pytest.skip("this is verifiers.v1")
    from datasets import Dataset

    def divide(x: int, y: int) -> float:
        """Divide two numbers."""
        return x / y

    def load_environment():
        rows = Dataset.from_list([{"question": str(n), "answer": ""} for n in range(20)])
        return vf.EnvGroup(
            [
                vf.ToolEnv(dataset=rows, tools=[divide], max_turns=2, rubric=vf.Rubric(funcs=[lambda completion: 1.0]))
                for _ in range(2)
            ]
        )

    dividing = member("verifiers", made_module("made_dividing", load_environment=load_environment))
    async with contextlib.AsyncExitStack() as stack:
        environment = dividing.make()
        environment.shared = await stack.enter_async_context(dividing.share({}))
        calls = tuple(ToolCall("divide", arguments) for arguments in ({"x": 1, "y": 1}, {"x": 1, "y": 0}, {"z": 1}))
        turns = [Action("", calls), Action("done", ())]
        _, (divided, end) = await play(environment, dividing.make_tasks("train", 1, 0)[0], turns)
    assert [record.outcome for record in divided.calls] == [CallOutcome.OK, CallOutcome.ERROR, CallOutcome.MALFORMED]
    assert divided.calls[1].problem == "ZeroDivisionError: division by zero"
    assert divided.fault is Fault.TOOL_ERROR
    assert [(error.method, error.kind) for error in divided.errors] == [("divide", "ZeroDivisionError")]
    assert [message.content for message in divided.observation.messages][:2] == ["1.0", "division by zero"]
    assert (end.reward, end.done, end.fault, end.errors) == (1.0, True, None, ())


async def test_what_an_environment_of_verifiers_asks_of_sampling_is_heard():
    vf = pytest.importorskip("verifiers")
    if not hasattr(vf, "load_environment"):
        pytest.skip("this is verifiers.v1")
    from datasets import Dataset

    rows = Dataset.from_list([{"question": str(n), "answer": ""} for n in range(20)])
    rubric, asked_for = vf.Rubric(funcs=[lambda completion: 1.0]), {"logprobs": True}
    made = made_module(
        "made_asking", load_environment=lambda: vf.SingleTurnEnv(dataset=rows, rubric=rubric, sampling_args=asked_for)
    )
    asking = member("verifiers", made)
    async with contextlib.AsyncExitStack() as stack:
        environment = asking.make()
        environment.shared = await stack.enter_async_context(asking.share({}))
        with pytest.raises(EnvironmentBroken, match="asks for logprobs=True, which turns here do not have"):
            await play(environment, asking.make_tasks("train", 1, 0)[0], [])


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (
            lambda vf, rows: vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[lambda completions: [1.0]])),
            "scores the rollouts",
        ),
        (
            lambda vf, rows: vf.SingleTurnEnv(eval_dataset=rows, rubric=vf.Rubric(funcs=[lambda completion: 1.0])),
            "'made_refused' has no rows for training: dataset is not set",
        ),
        (lambda vf, rows: vf.SingleTurnEnv(dataset=rows), "'made_refused' has no rubric, or one without functions"),
        (
            lambda vf, rows: vf.EnvGroup(
                [
                    vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[lambda completion: 1.0])),
                    vf.SingleTurnEnv(dataset=rows, rubric=vf.JudgeRubric(judge_client=object())),
                ]
            ),
            "'made_refused' has no rubric, or one without functions",
        ),
        (
            lambda vf, rows: vf.SingleTurnEnv(
                dataset=rows, rubric=vf.Rubric(funcs=[lambda completion: 1.0]), score_rollouts=False
            ),
            r"leaves its rollouts unscored \(score_rollouts\)",
        ),
    ],
)
def test_what_verifiers_cannot_be_trained_on_is_refused_before_the_run(made, problem: str, monkeypatch: pytest.MonkeyPatch):
    vf = pytest.importorskip("verifiers")
    if not hasattr(vf, "load_environment"):
        pytest.skip("this is verifiers.v1")
    from datasets import Dataset

    rows = Dataset.from_list([{"question": str(n), "answer": ""} for n in range(20)])
    monkeypatch.setattr("asyncrl.envs.other_projects.verifiers._environments", {})
    name = made_module("made_refused", load_environment=lambda: made(vf, rows))
    with pytest.raises(RecipeError, match=problem):
        member("verifiers", name).make_tasks("train", 1, 0)


def made_module(name: str, **contents: object) -> str:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(contents)
    return name


@pytest.mark.parametrize("late", [False, True], ids=["rows", "made when they are asked for"])
def test_held_out_rows_of_verifiers_are_used_whole_and_none_are_taken_from_training(late):
    vf = pytest.importorskip("verifiers")
    if not hasattr(vf, "load_environment"):
        pytest.skip("this is verifiers.v1")
    from datasets import Dataset

    rows = {count: Dataset.from_list([{"question": str(n), "answer": ""} for n in range(count)]) for count in (40, 30)}
    held_out = (lambda: rows[30]) if late else rows[30]
    rubric = vf.Rubric(funcs=[lambda completion: 1.0])
    name = made_module(
        f"made_split_{late}".lower(),
        load_environment=lambda: vf.SingleTurnEnv(dataset=rows[40], eval_dataset=held_out, rubric=rubric),
    )
    split = member("verifiers", name)
    assert [len(split.make_tasks(each, 100, 0)) for each in ("train", "evaluation")] == [40, 30]


async def test_rewards_and_metrics_of_verifiers_v1_arrive_by_name(monkeypatch: pytest.MonkeyPatch):
    if hasattr(pytest.importorskip("verifiers"), "load_environment"):
        pytest.skip("this is the library before verifiers.v1")
    import verifiers.v1 as vf

    class DoubledData(vf.TaskData):
        answer: str

    class DoubledTask(vf.Task[DoubledData, vf.State, vf.TaskConfig]):
        @vf.reward
        async def right(self, trace: vf.Trace) -> float:
            return float(self.data.answer in (trace.last_reply or ""))

        @vf.metric
        async def letters(self, trace: vf.Trace) -> float:
            return float(len(trace.last_reply or ""))

    class Doubled(vf.Taskset[DoubledTask, vf.TasksetConfig]):
        def load(self):
            for n in range(20):
                yield DoubledTask(DoubledData(name=str(n), prompt=f"{n}+{n}", answer=str(2 * n)), self.config.task)

    doubled = member("verifiers", made_module("made_doubled", Doubled=Doubled, __all__=["Doubled"]))
    (task,) = doubled.make_tasks("train", 1, 0)
    answer = str(2 * int(task.question.split("+")[0]))
    async with contextlib.AsyncExitStack() as stack:
        environment = doubled.make()
        environment.shared = await stack.enter_async_context(doubled.share({}))
        _, (end,) = await play(environment, task, [Action(answer, ())])
    assert (end.reward, end.done, end.rewards) == (1.0, True, {"right": 1.0})
    assert end.metrics == {"right": 1.0, "letters": float(len(answer))}
    monkeypatch.setattr(vf.Trace, "record_reward", lambda trace, *_, **__: None)
    async with contextlib.AsyncExitStack() as stack:
        environment = doubled.make()
        environment.shared = await stack.enter_async_context(doubled.share({}))
        with pytest.raises(EnvironmentBroken, match="was not scored: its reward 'right' is None"):
            await play(environment, task, [Action(answer, ())])


def test_a_package_that_is_not_installed_is_named_with_how_to_get_it():
    missing = next(
        (name for name, source in SOURCES.items() if source.module not in sys.modules and not _has(source.module)), None
    )
    if missing is None:
        pytest.skip("all are installed")
    with pytest.raises(RecipeError, match=r"is not installed here; .* -m pip install"):
        source_named(missing)


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None
