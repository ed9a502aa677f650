"""Programs that know nothing of training play episodes: with the libraries of OpenAI and Anthropic, well and badly."""

import asyncio
import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fake_engine import FakeEngine
from played import CALL, LIMITS, until
from played_agents import ASKS, DAEMON, OPENAI_AGENT, PLAIN_AGENT, TASK, adds, late_once, play

from asyncrl.core.errors import ComponentFailed, EnvironmentBroken, PromptTooLong, RecipeError
from asyncrl.core.ids import GroupId
from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.core.trajectory import StopReason
from asyncrl.envs.agent.member import AgentMember
from asyncrl.envs.builtin.calculator import Calculator, calculate_steps
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.load import load_member
from asyncrl.generators.episode import EpisodeName, EpisodeTools, run_episode
from asyncrl.generators.gateway.agent_play import TURNS_TAKEN_BACK, UNENFORCED, agent_episode
from asyncrl.generators.gateway.server import Gateway
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.run.recipe.compose import compose

ANTHROPIC_AGENT = """
import os, sys
from anthropic import Anthropic
client = Anthropic()
for model in ("main", "background"):
    said = client.messages.create(model=model, max_tokens=300, messages=[{"role": "user", "content": sys.argv[1]}])
print(said.content[0].text)
"""


async def test_an_agent_of_openai_s_library_is_rewarded_for_what_it_prints(protocols, tmp_path: Path) -> None:
    played = await play(protocols, tmp_path, OPENAI_AGENT, reward="exact")
    (trajectory,) = played.trajectories
    assert (played.result.reward, played.stop_reason, len(trajectory.turns)) == (1.0, StopReason.ENVIRONMENT_DONE, 2)
    assert played.metrics == {TURNS_TAKEN_BACK: 0.0, UNENFORCED: 0.0}
    assert trajectory.turns[0].environment_s > 0


async def test_an_agent_of_anthropic_s_library_with_two_roles(protocols, tmp_path: Path) -> None:
    played = await play(protocols, tmp_path, ANTHROPIC_AGENT, reward="exact", arguments=["Say: {prompt}"])
    assert [each.role for each in played.trajectories] == ["main", "background"]
    assert played.result.reward == 0.0


RESULT = """
import json, os
json.dump({"reward": 0.5, "rewards": {"sub": 1.0}, "metrics": {"steps": 3}}, open(os.environ["ASYNCRL_RESULT"], "w"))
"""


async def test_the_result_file_has_rewards_and_metrics(protocols, tmp_path: Path) -> None:
    played = await play(protocols, tmp_path, PLAIN_AGENT + RESULT)
    assert (played.result.reward, played.result.rewards) == (0.5, {"sub": 1.0})
    assert played.metrics == {"steps": 3.0, TURNS_TAKEN_BACK: 0.0, UNENFORCED: 0.0}


async def test_what_an_agent_sees_and_what_it_does_not(protocols, tmp_path: Path) -> None:
    see = 'import json, os\nprint(json.dumps({"task": json.load(open(os.environ["ASYNCRL_TASK"])), "of": dict(os.environ)}))'
    seen: dict[str, Any] = {}

    def note(task: Task, answer: str) -> float:
        seen.update(msgspec.json.decode(answer.splitlines()[-1]))
        return 1.0

    sys.modules["noting"] = type(sys)("noting")
    sys.modules["noting"].note = note  # type: ignore[attr-defined]
    os.environ["ASYNCRL_TEST_OF_ITS_OWN"] = "not for agents"
    try:
        spec = {"secrets": ("A_KEY",), "task_data": ("hint",), "variables": {"ROLE": "main"}, "reward": "noting:note"}
        await play(protocols, tmp_path, PLAIN_AGENT + see, **spec)
    finally:
        del os.environ["ASYNCRL_TEST_OF_ITS_OWN"], sys.modules["noting"]
    assert seen["task"] == {
        "id": "sum",
        "prompt": "What is 1+1?",
        "messages": [{"role": "user", "content": "What is 1+1?"}],
        "data": {"hint": "small"},
    }
    assert (seen["of"]["A_KEY"], seen["of"]["ROLE"]) == ("s3cret value", "main")
    assert "ASYNCRL_TEST_OF_ITS_OWN" not in seen["of"]
    assert seen["of"]["HOME"] == str(tmp_path / "episode" / "work")


@pytest.mark.parametrize(
    ("returned", "reward"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        ({"a": np.float64(0.5), "b": 1}, 1.5),
        (None, "returned None; it must return a finite number"),
        ({"a": "x"}, r"returned \{'a': 'x'\}; it must return a finite number"),
        (10**400, "it must return a finite number"),
        (1e300, r"returned 1e\+300; it must return a finite number"),
    ],
)
async def test_a_reward_of_an_agent_is_any_number_and_nothing_else(
    protocols, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returned: Any, reward: float | str
) -> None:
    monkeypatch.setitem(sys.modules, "giving", module := type(sys)("giving"))
    module.give = lambda task, answer: returned  # type: ignore[attr-defined]
    playing = play(protocols, tmp_path, PLAIN_AGENT, reward="giving:give")
    if isinstance(reward, float):
        assert (await playing).result.reward == reward
    else:
        with pytest.raises(EnvironmentBroken, match=reward):
            await playing


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (
            "import sys; sys.stderr.write('no key s3cret value'); sys.exit(3)",
            "exit status 3; the end of its standard error:\nno key",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit status 137 without a word"),
        ("pass", "ended without having asked for a turn"),
        (PLAIN_AGENT + "open(os.environ['ASYNCRL_RESULT'], 'w').write('[1]')", "result file is not what it must be"),
        (PLAIN_AGENT + "open(os.environ['ASYNCRL_RESULT'], 'w').write('{\"reward\": 1e300}')", "must be a number of at most"),
        (PLAIN_AGENT, "the agent ended, and nobody gave a reward"),
        (PLAIN_AGENT + "os.mkdir(os.environ['ASYNCRL_RESULT'])", "result file cannot be read: Is a directory"),
    ],
)
async def test_an_agent_that_fails_fails_the_attempt(protocols, tmp_path: Path, code: str, problem: str) -> None:
    with pytest.raises(EnvironmentBroken, match=problem) as raised:
        await play(protocols, tmp_path, code, secrets=("A_KEY",))
    assert "s3cret" not in str(raised.value)


async def test_what_was_asked_for_and_not_enforced_is_a_metric(protocols, tmp_path: Path) -> None:
    code = PLAIN_AGENT.replace("tools=[tool])", "tools=[tool], tool_choice='required')")
    played = await play(protocols, tmp_path, code, reward="exact")
    assert played.metrics[UNENFORCED] == 2.0


async def test_a_failing_agent_may_be_scored(protocols, tmp_path: Path) -> None:
    played = await play(protocols, tmp_path, PLAIN_AGENT + "raise SystemExit(1)", reward="exact", on_agent_error="score")
    assert played.result.reward == 1.0
    (folder := tmp_path / "unscored").mkdir()
    played = await play(protocols, folder, PLAIN_AGENT + "raise SystemExit(1)", on_agent_error="score")
    assert played.result.reward == 0.0, "it did not come to writing one"


@pytest.mark.parametrize(("reward", "given"), [("exact", 1.0), ("", 0.0)])
async def test_a_result_file_that_is_none_has_no_episode_played_again_where_errors_are_scored(
    protocols, tmp_path: Path, reward: str, given: float
) -> None:
    code = PLAIN_AGENT + "open(os.environ['ASYNCRL_RESULT'], 'w').write('[1]')"
    played = await play(protocols, tmp_path, code, reward=reward, on_agent_error="score")
    assert played.result.reward == given


async def test_a_limit_ends_an_agent_s_episode_and_its_end_is_no_failure(protocols, tmp_path: Path) -> None:
    played = await play(protocols, tmp_path, PLAIN_AGENT, limits={"max_turns": 1}, reward="exact")
    assert (played.stop_reason, len(played.trajectories), played.result.reward) == (StopReason.MAX_TURNS, 1, 0.0)


GROWS = (
    ASKS
    + """
words = "x" * int(sys.argv[1])
while "error" not in (told := ask(words)):
    words *= 8
if sys.argv[2:]:
    ask("a summary")
sys.exit(told["error"]["code"])
"""
)
"""An agent whose prompts grow until there is no room for a turn."""


@pytest.mark.parametrize("reward", ["exact", ""])
async def test_an_agent_that_ends_for_want_of_room_has_met_a_limit(protocols, tmp_path: Path, reward: str) -> None:
    played = await play(protocols, tmp_path, GROWS, reward=reward, arguments=["8"])
    assert (played.stop_reason, len(played.trajectories), played.result.reward) == (StopReason.CONTEXT_LENGTH, 3, 0.0)


async def test_an_agent_that_fails_after_it_has_compacted_fails_the_attempt(protocols, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentBroken, match=r"exit status 1.*\n?context_length_exceeded"):
        await play(protocols, tmp_path, GROWS, reward="exact", arguments=["8", "compact"])


async def test_an_agent_whose_first_prompt_leaves_no_room_has_its_task_left_out(protocols, tmp_path: Path) -> None:
    with pytest.raises(PromptTooLong, match=r"task sum: its prompt has 4,1.. tokens, and model\.max_context is 4,000"):
        await play(protocols, tmp_path, GROWS, reward="exact", arguments=["4100"])


CUT_OFF = """
import atexit, os
atexit.register(lambda: open(os.environ["ASYNCRL_RESULT"], "w").write('{"reward": 0.'))
"""


@pytest.mark.parametrize("reward", ["exact", ""])
async def test_a_result_file_that_a_limit_cut_off_is_no_failure(protocols, tmp_path: Path, reward: str) -> None:
    played = await play(protocols, tmp_path, CUT_OFF + PLAIN_AGENT, limits={"max_turns": 1}, reward=reward)
    assert (played.stop_reason, played.result.reward) == (StopReason.MAX_TURNS, 0.0)


def has_two(mark: Path) -> bool:
    """Whether the agent and what it started are named in a file."""
    return mark.exists() and len(mark.read_text().split()) == 2


@pytest.mark.parametrize("hangs", [False, True], ids=["ends", "hangs"])
async def test_nothing_of_an_agent_outlives_its_episode(protocols, tmp_path: Path, hangs: bool) -> None:
    code = PLAIN_AGENT + DAEMON + ("time.sleep(600)" if hangs else "")
    mark = tmp_path / "mark"
    playing = play(protocols, tmp_path, code, reward="exact", variables={"MARK": str(mark)})
    played = await late_once(lambda: has_two(mark), playing) if hangs else await playing
    assert played.stop_reason is (StopReason.EPISODE_TIMEOUT if hangs else StopReason.ENVIRONMENT_DONE)
    for process in map(int, mark.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


async def test_an_episode_that_is_cancelled_ends_its_agent(protocols, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = PLAIN_AGENT + DAEMON + "time.sleep(600)"
    playing = asyncio.create_task(play(protocols, tmp_path, code, variables={"MARK": str(mark)}))
    await until(lambda: has_two(mark))
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    for process in map(int, mark.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


async def test_a_dead_engine_is_no_fault_of_the_agent(protocols, tmp_path: Path) -> None:
    engine = FakeEngine(adds)
    engine.dead = True
    with pytest.raises(ComponentFailed):
        await play(protocols, tmp_path, OPENAI_AGENT.replace("OpenAI()", "OpenAI(max_retries=0)"), engine)


CALCULATOR_AGENT = """
import json, os
from openai import OpenAI
from asyncrl.envs.builtin.calculator import calculate
task, client, tool = json.load(open(os.environ["ASYNCRL_TASK"])), OpenAI(), json.loads(os.environ["TOOL"])
messages = task["messages"]
while True:
    message = client.chat.completions.create(model="main", messages=messages, tools=[tool]).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls or ():
        value = calculate(json.loads(call.function.arguments)["expression"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(value)})
    if not message.tool_calls:
        break
print(message.content)
"""


def calculates(row: str) -> str:
    steps = calculate_steps(row.partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0])
    done = row.count("<tool_response>")
    if done == len(steps):
        return f"The value is {steps[-1][1]}."
    call = json.dumps({"name": "calculator", "arguments": {"expression": steps[done][0]}})
    return f"<tool_call>\n{call}\n</tool_call>"


async def test_the_calculator_as_an_agent_has_the_episodes_of_our_own_environment(protocols, tmp_path: Path) -> None:
    for number, task in enumerate(Calculator.make_tasks("train", 3, 0)):
        engine, limits = FakeEngine(calculates), LIMITS.greedy()
        reader = ToolCallReader(engine.chat.tokenizer, "hermes")
        own = await run_episode(
            task, EpisodeName(GroupId(0), 0, 0), limits, EpisodeTools(engine, engine.chat, reader, lambda _: Calculator())
        )
        (described,) = (await Calculator().reset(task)).tools
        folder = tmp_path / str(number)
        folder.mkdir()
        played = await play(
            protocols,
            folder,
            CALCULATOR_AGENT,
            engine,
            task=task,
            reward="exact",
            variables={"TOOL": json.dumps(described.as_template_input()), "PYTHONPATH": os.pathsep.join(sys.path)},
            limits={"sampling": limits.sampling},
        )
        (expected,), (trajectory,) = own.trajectories, played.trajectories
        assert trajectory.token_ids.tolist() == expected.token_ids.tolist()
        assert trajectory.loss_mask.tolist() == expected.loss_mask.tolist()
        assert trajectory.logprobs.tolist() == expected.logprobs.tolist()
        assert [(turn.start, turn.end) for turn in trajectory.turns] == [(turn.start, turn.end) for turn in expected.turns]
        assert (trajectory.part, trajectory.parent, trajectory.why) == (expected.part, expected.parent, expected.why)
        assert (played.stop_reason, own.reward) == (own.stop_reason, 1.0)


async def test_a_worker_s_episode_of_an_agent(protocols, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PLAIN_AGENT + RESULT)
    engine = FakeEngine(adds)
    member = AgentMember(AgentEnvironmentConfig(command=("python", str(tmp_path / "agent.py"))), "environment")
    provided = Provided(workspace=tmp_path / "episode")
    gateway = Gateway(protocols, engine.chat)
    await gateway.start()
    reader = ToolCallReader(engine.chat.tokenizer, "hermes")
    by_gateway = partial(agent_episode, gateway)
    tools = EpisodeTools(engine, engine.chat, reader, lambda _: member.make(provided), play_agent=by_gateway)
    try:
        episode = await run_episode(TASK, EpisodeName(GroupId(3), 1, 0), LIMITS, tools, queued_s=2.0)
    finally:
        await gateway.close()
    episode.check()
    assert (episode.group_id, episode.sample_index, episode.reward, episode.role_rewards) == (3, 1, 0.5, {"sub": 1.0})
    assert (episode.stop_reason, episode.metrics["steps"]) == (StopReason.ENVIRONMENT_DONE, 3.0)
    assert episode.times.queued_s == 2.0
    assert not (tmp_path / "episode").exists()


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ({"command": ("no-such-program",)}, "environment.command"),
        ({"command": ("python",), "reward": "nothing"}, "environment.reward"),
        ({"command": ("python",), "tasks": "nothing"}, "environment.tasks"),
        ({"command": ("python",)}, "tasks.kind"),
        ({"command": ("python",), "python": "/no/python"}, "environment.python"),
    ],
    ids=["command", "reward", "tasks", "no tasks", "python"],
)
def test_what_is_wrong_with_an_agent_is_found_before_anything_starts(spec: dict[str, Any], key: str) -> None:
    with pytest.raises(RecipeError) as raised:
        check_and_make_tasks(AgentEnvironmentConfig(**spec))
    assert raised.value.place == key


def check_and_make_tasks(config: AgentEnvironmentConfig) -> None:
    member = load_member(config)
    member.check(dict(os.environ))
    member.make_tasks("train", 1, 0)


PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "agents.md").read_text()
"""What is shown to users."""


async def test_the_program_of_the_page_works_as_it_stands(protocols, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    call = CALL.replace('{"a": 1}', '{"a": 1, "b": 1}')
    engine = FakeEngine(lambda row: "2" if "<tool_response>\n2" in row else call)
    played = await play(protocols, tmp_path, code, engine, reward="exact")
    assert (played.result.reward, len(played.trajectories[0].turns)) == (1.0, 2)


def test_the_recipe_of_the_page_is_one(tmp_path: Path) -> None:
    recipe, *_ = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)  # others are of a section
    (tmp_path / "solve.yaml").write_text(recipe)
    composed = compose(str(tmp_path / "solve.yaml"), ["model.path=tiny"])
    assert isinstance(composed.environment, AgentEnvironmentConfig)
    assert load_member(composed.environment).spec.max_turns == 8
