"""Data sets in the shapes that others publish them in: read, rendered by Qwen3's own template, and played.

Only the shapes are theirs; the rows are made here.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_engine import FakeEngine
from real_tokenizers import tokenizer_of

from asyncrl.buffers.tasks.task_files import read_sources
from asyncrl.core.episode import Episode
from asyncrl.core.ids import GroupId
from asyncrl.core.messages import ToolCall
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.core.recipe.tasks import TaskFileConfig
from asyncrl.core.task import Task
from asyncrl.core.trajectory import StopReason
from asyncrl.envs import ToolEnvironment, tool
from asyncrl.envs.base import Action, Observation, StepResult
from asyncrl.envs.rewards.math_reward import MathEquivalence
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.episode import EpisodeLimits, EpisodeName, EpisodeTools, run_episode
from asyncrl.generators.tool_calls.reader import ToolCallReader

RECIPE = Recipe(name="r", steps=1, model=ModelConfig(path="m", max_context=4096), environment=ClassEnvironmentConfig(name="e"))


class Sums(ToolEnvironment):
    """Answers are compared as mathematics."""

    math = MathEquivalence()

    @tool
    async def calc(self, expression: str) -> str:
        """The value of a sum."""
        return str(sum(int(part) for part in expression.split("+")))

    async def reward(self, task: Task, answer: str) -> float:
        return await self.math(task, answer)


class Checked(ToolEnvironment):
    """A tool whose arguments come with the row, as verl's data have them."""

    @tool
    async def calc_reward(self, answer: str) -> str:
        """Whether an answer is right."""
        kwargs = self.task.data["extra_info"]["tools_kwargs"]["calc_reward"]["create_kwargs"]
        assert kwargs.keys() == {"ground_truth"}, "a field that other rows have is no argument"
        return str(answer == kwargs["ground_truth"])

    def reward(self, task: Task, answer: str) -> float:
        return float(answer == task.data["answer"])


class Calls(ToolEnvironment):
    """The turn's calls are the answer: they are compared with those of the row."""

    scores_answers = False

    async def step(self, action: Action) -> StepResult:
        called = [{"name": call.name, "arguments": call.arguments} for call in action.calls if isinstance(call, ToolCall)]
        return StepResult(Observation(()), float(called == self.task.data["answers"]), done=True)

    def reward(self, task: Task, answer: str) -> float:
        raise NotImplementedError


class Written(ToolEnvironment):
    """The turn's calls are the answer, which the row has as the text that a model of its time wrote."""

    scores_answers = False

    async def step(self, action: Action) -> StepResult:
        called = [call(each.name, **each.arguments) for each in action.calls if isinstance(each, ToolCall)]
        return StepResult(Observation(()), float("\n".join(called) == self.task.data["answer"]), done=True)

    def reward(self, task: Task, answer: str) -> float:
        raise NotImplementedError


class Simulated(ToolEnvironment):
    """Answers calls of the tools that the row describes."""

    async def run_described(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{name} of {arguments['city']}: sunny"

    def reward(self, task: Task, answer: str) -> float:
        return float(answer == task.data["answer"])


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def array(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(rows, indent=2))
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


class Shape(NamedTuple):
    """A data set's shape.

    Attributes:
        write: writes its rows.
        rows: at least one.
        keys: what the recipe says of it.
        shown: what the first prompt must hold, as the template writes it.
        environment: plays it.
        turns: what the policy samples in the episode of each row.
        data: the data of the first task.
    """

    write: Callable[[Path, list[dict[str, Any]]], Path]
    file: str
    rows: list[dict[str, Any]]
    keys: dict[str, Any]
    shown: tuple[str, ...]
    environment: type[ToolEnvironment]
    turns: tuple[tuple[str, ...], ...]
    data: dict[str, Any]


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED_WEATHER = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}

SHAPES = {
    "gsm8k": Shape(
        parquet,
        "train-00000-of-00001.parquet",
        [
            {"question": "1 apple and 2 apples?", "answer": "1+2=<<1+2=3>>3\n#### 3"},
            {"question": "1,000 and 234?", "answer": "1000+234\n#### 1,234"},
        ],
        {"columns": {"prompt": "question", "answer": "answer"}},
        ("<|im_start|>user\n1 apple and 2 apples?<|im_end|>", '"name": "calc"'),
        Sums,
        ((call("calc", expression="1+2"), "It is 3."), ("The answer is 1234.",)),
        {"answer": "1+2=<<1+2=3>>3\n#### 3"},
    ),
    "MATH": Shape(
        array,
        "math.json",
        [
            {"problem": "Half of $x$?", "level": "Level 1", "type": "Algebra", "solution": "So it is $\\boxed{\\frac{x}{2}}$."},
            {"problem": "How many?", "level": "Level 5", "type": "Counting", "solution": 12345678901234567890123},
        ],
        {"columns": {"prompt": "problem", "answer": "solution"}},
        ("user\nHalf of $x$?<|im_end|>",),
        Sums,
        (("\\boxed{x/2}",), ("12345678901234567890123",)),
        {"answer": "So it is $\\boxed{\\frac{x}{2}}$.", "level": "Level 1", "type": "Algebra"},
    ),
    "xlam": Shape(
        array,
        "xlam.json",
        [
            {
                "id": 0,
                "query": "Weather in Oslo and Rome?",
                "answers": json.dumps([{"name": "weather", "arguments": {"city": each}} for each in ("Oslo", "Rome")]),
                "tools": json.dumps(
                    [
                        {
                            "name": "weather",
                            "description": "The weather.",
                            "parameters": {
                                "city": {"description": "Where.", "type": "str"},
                                "days": {"description": "How many.", "type": "int, optional", "default": "1"},
                                "at": {"description": "When.", "type": "Optional[List[float]]"},
                            },
                        }
                    ]
                ),
            }
        ],
        {"columns": {"prompt": "query", "tools": "tools"}, "json": ["answers", "tools"]},
        (
            '"city": {"description": "Where.", "type": "string"}',
            '"type": "integer"',
            '"items": {"type": "number"}',
            '"required": ["city"]',
        ),
        Calls,
        ((f"{call('weather', city='Oslo')}\n{call('weather', city='Rome')}",),),
        {"answers": [{"name": "weather", "arguments": {"city": each}} for each in ("Oslo", "Rome")]},
    ),
    "ToolACE": Shape(
        array,
        "data.json",
        [
            {
                "system": "You may call functions: [...]",
                "conversations": [
                    {"from": "user", "value": "Weather in Oslo?"},
                    {"from": "assistant", "value": '[weather(city="Oslo")]'},
                    {"from": "tool", "value": '[{"name": "weather", "results": "sunny"}]'},
                    {"from": "assistant", "value": "It is sunny."},
                ],
            }
        ],
        {"columns": {"prompt": "conversations", "system": "system"}, "reference": "answer"},
        ("system\nYou may call functions: [...]", 'assistant\n[weather(city="Oslo")]<|im_end|>', "<tool_response>\n[{"),
        Simulated,
        (("It is sunny.",),),
        {"answer": "It is sunny."},
    ),
    "verl": Shape(
        parquet,
        "train.parquet",
        [
            {
                "data_source": "openai/gsm8k",
                "prompt": [{"role": "user", "content": "1+2? Answer after ####."}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": "3"},
                "extra_info": {
                    "index": 0,
                    "need_tools_kwargs": True,
                    "tools_kwargs": {"calc_reward": {"create_kwargs": {"ground_truth": "3"}}},
                },
            },
            {
                "data_source": "other",
                "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "Where?"}],
                "ability": "place",
                "reward_model": {"style": "rule", "ground_truth": "Oslo"},
                "extra_info": {
                    "index": 1,
                    "tools_kwargs": {
                        "calc_reward": {"create_kwargs": {"ground_truth": "Oslo"}},
                        "look_up": {"create_kwargs": {"limit": 3}},
                    },
                },
            },
        ],
        {"columns": {"answer": "reward_model.ground_truth"}},
        ("user\n1+2? Answer after ####.<|im_end|>",),
        Checked,
        ((call("calc_reward", answer="3"), "3"), ("Oslo",)),
        {
            "data_source": "openai/gsm8k",
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "3"},
            "extra_info": {
                "index": 0,
                "need_tools_kwargs": True,
                "tools_kwargs": {"calc_reward": {"create_kwargs": {"ground_truth": "3"}}},
            },
            "answer": "3",
        },
    ),
    "Hermes": Shape(
        lines,
        "func-calling.jsonl",
        [
            {
                "id": "85f3",
                "conversations": [
                    {"from": "system", "value": "You are a function calling AI."},
                    {"from": "human", "value": "Weather in Oslo?"},
                    {"from": "gpt", "value": call("weather", city="Oslo")},
                ],
                "tools": json.dumps([WEATHER]),
                "category": "Weather",
            }
        ],
        {"columns": {"prompt": "conversations", "tools": "tools"}, "json": ["tools"], "reference": "answer"},
        (
            "system\nYou are a function calling AI.",
            '"name": "weather"',
            "user\nWeather in Oslo?<|im_end|>\n<|im_start|>assistant\n",
        ),
        Written,
        ((call("weather", city="Oslo"),),),
        {"category": "Weather", "answer": call("weather", city="Oslo")},
    ),
    "LLaMA-Factory": Shape(
        array,
        "glaive_toolcall.json",
        [
            {
                "conversations": [
                    {"from": "human", "value": "Weather in Oslo?"},
                    {"from": "function_call", "value": json.dumps({"name": "weather", "arguments": {"city": "Oslo"}})},
                    {"from": "observation", "value": "sunny"},
                    {"from": "gpt", "value": "Sunny."},
                ],
                "system": "Be brief.",
                "tools": json.dumps([WEATHER["function"]]),
            }
        ],
        {"columns": {"prompt": "conversations", "tools": "tools", "system": "system"}, "json": ["tools"], "reference": "answer"},
        (
            "system\nBe brief.",
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
            "<tool_response>\nsunny\n</tool_response>",
        ),
        Simulated,
        (("Sunny.",),),
        {"answer": "Sunny."},
    ),
    "INTELLECT-2": Shape(
        parquet,
        "train.parquet",
        [{"problem_id": "p1", "prompt": "1+2?", "verification_info": json.dumps({"ground_truth": "3"}), "metadata": "{}"}],
        {
            "columns": {"id": "problem_id", "answer": "verification_info.ground_truth"},
            "json": ["verification_info"],
        },
        ("user\n1+2?<|im_end|>",),
        Sums,
        (("<think>4?</think>\\boxed{3}",),),
        {"verification_info": {"ground_truth": "3"}, "metadata": "{}", "answer": "3"},
    ),
    "OpenAI fine-tuning": Shape(
        lines,
        "chat.jsonl",
        [
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "Weather "}, {"type": "text", "text": "in Oslo?"}]},
                    {"role": "assistant", "tool_calls": [ASKED_WEATHER], "weight": 0},
                    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
                    {"role": "assistant", "content": "Sunny.", "weight": 1},
                ],
                "tools": [WEATHER],
                "parallel_tool_calls": False,
            }
        ],
        {"columns": {"prompt": "messages", "tools": "tools"}, "reference": "answer"},
        (
            "user\nWeather in Oslo?<|im_end|>",
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
            "<tool_response>\nsunny\n</tool_response>",
            '"name": "weather", "description": "The weather."',
        ),
        Simulated,
        (("Sunny.",),),
        {"parallel_tool_calls": False, "answer": "Sunny."},
    ),
}
"""Each with a row that its environment can reward fully."""


def tasks_of(shape: Shape, folder: Path) -> list[Task]:
    path = shape.write(folder / shape.file, shape.rows)
    (source,) = read_sources([TaskFileConfig(path=str(path), **shape.keys)], "tasks.train", "refuse")
    return [source.tasks[index] for index in range(len(source.tasks))]


async def play(task: Task, chat: ChatFormat, environment: type[ToolEnvironment], turns: tuple[str, ...]) -> Episode:
    left = list(turns)
    engine = FakeEngine(lambda row: left.pop(0))
    engine.chat = chat
    tools = EpisodeTools(engine, chat, ToolCallReader(chat.tokenizer, "hermes"), lambda task: environment())
    return await run_episode(task, EpisodeName(GroupId(0), 0, 0), EpisodeLimits.of(RECIPE), tools)


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat.load(str(tokenizer_of("qwen3")))


@pytest.mark.parametrize("name", SHAPES)
async def test_a_data_set_is_read_shown_to_the_model_and_rewarded(tmp_path: Path, chat: ChatFormat, name: str) -> None:
    shape = SHAPES[name]
    tasks = tasks_of(shape, tmp_path)
    assert tasks[0].data == shape.data
    for task, turns in zip(tasks, shape.turns, strict=True):
        episode = await play(task, chat, shape.environment, turns)
        (trajectory,) = episode.trajectories
        if task is tasks[0]:
            prompt = chat.decode(trajectory.token_ids[: trajectory.turns[0].start].tolist())
            assert [part for part in shape.shown if part not in prompt] == []
        assert (episode.stop_reason, episode.reward) == (StopReason.ENVIRONMENT_DONE, 1.0)


@pytest.mark.parametrize("name", SHAPES)
async def test_the_prompt_is_what_the_template_makes_of_the_whole_conversation(
    tmp_path: Path, chat: ChatFormat, name: str
) -> None:
    for task in tasks_of(SHAPES[name], tmp_path):
        shown = await SHAPES[name].environment().reset(task)
        ids = await chat.prompt(shown.messages, shown.tools)
        whole = chat.tokenizer.apply_chat_template(
            [message.as_template_input() for message in shown.messages],
            tools=[each.as_template_input() for each in shown.tools] or None,
            add_generation_prompt=True,
            tokenize=False,
        )
        assert ids == chat.tokenizer.encode(whole, add_special_tokens=False)


def test_a_template_that_would_drop_the_calls_of_earlier_turns_refuses_them(tmp_path: Path) -> None:
    (task,) = tasks_of(SHAPES["OpenAI fine-tuning"], tmp_path)
    with pytest.raises(Exception, match="it leaves out the calls of the assistant's earlier turns"):
        asyncio.run(ChatFormat.load(str(tokenizer_of("llama3_1"))).prompt(task.prompt))
