"""Prompts that leave no room for a turn are found before a run, by the model's own template, and a run leaves out just these."""

import json
from pathlib import Path

import pytest
from model_folders import SMALL, write_model

from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import Message
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.envs.builtin.calculator import Calculator
from asyncrl.envs.tools import ToolEnvironment
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.run.buffer.tasks import load_held_out_tasks, make_task_stream
from asyncrl.run.dry_run import prompt_lengths
from asyncrl.run.dry_run.plan import make_plan
from asyncrl.run.dry_run.prompt_lengths import chosen, left_out, most_tokens
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose

ROOMY = Machine(memory=64 << 30, free=60 << 30, cores=8)
LONG = "1 + " * 400 + "1"


class Shortening(ToolEnvironment):
    """Makes its prompts itself, from as much of the task's as fits."""

    async def reset(self, task: Task):
        return await super().reset(Task(id=task.id, prompt=task.question[:20], data=task.data))

    def reward(self, task: Task, answer: str) -> float:
        return 0.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", SMALL)


def recipe(folder: Path, train: list[str], evaluation: list[str], *overrides: str) -> Recipe:
    for name, prompts in (("train", train), ("evaluation", evaluation)):
        rows = [json.dumps({"prompt": prompt, "answer": 1}) for prompt in prompts]
        (folder.parent / f"{name}.jsonl").write_text("\n".join(rows))
    files = f"train: [{{path: {folder.parent}/train.jsonl}}], evaluation: [{{path: {folder.parent}/evaluation.jsonl}}]"
    tasks = f"+tasks={{kind: files, {files}}}"
    short = ("model.max_context=512", "sampling.max_turn_tokens=64")
    return compose("quickstart", [f"model.path={folder}", "~tasks", tasks, f"run_dir={folder.parent}/runs", *short, *overrides])


def test_what_is_too_long_is_counted_said_and_left_out_of_both_splits(folder: Path):
    planned = recipe(folder, [LONG, "1+1", "2+2", LONG + "1", "3+3"], ["1+1", LONG])
    plan = make_plan(planned, ROOMY)
    assert [(each.split, each.indexes, each.prompts, each.looked_at, each.of) for each in plan.too_long] == [
        ("train", (0, 3), 2, 5, 5),
        ("evaluation", (1,), 1, 2, 2),
    ]
    said = "\n".join(plan.remarks)
    assert "(train.jsonl): 2 prompts of 5 leave no room for a turn: the longest, of task train.jsonl:4, has" in said
    assert "(evaluation.jsonl): 1 prompt of 2 leaves no room" in said
    held_out = load_held_out_tasks(planned, left_out(plan.too_long, "evaluation"))
    assert [each.task.id for each in held_out] == ["evaluation.jsonl:1"]
    stream = make_task_stream(planned)
    stream.set_too_long(512, left_out(plan.too_long, "train"))
    assert {stream.next().task.prompt for _ in range(12)} == {"1+1", "2+2", "3+3"}


def test_a_recipe_may_refuse_such_tasks(folder: Path):
    refusing = recipe(folder, [LONG, "1+1"], ["1+1"], "+tasks.too_long=refuse")
    with pytest.raises(
        RecipeError, match=r"1 prompt of 2 leaves no room .* and model\.max_context is 512; raise it.*too_long=leave_out"
    ):
        make_plan(refusing, ROOMY)


def test_a_source_that_has_nothing_else_is_refused_either_way(folder: Path):
    with pytest.raises(RecipeError, match=r"2 prompts of 2 leave no room for a turn"):
        make_plan(recipe(folder, [LONG, LONG], ["1+1"]), ROOMY)


async def test_the_limit_is_that_of_an_episode_to_the_token(folder: Path):
    """With system message and tools: a prompt of max_context - 1 tokens has room for a token, one more has none."""
    chat, environment = ChatFormat.load(str(folder)), Calculator()
    lengths = {}
    for extra in range(40, 120):
        shown = await ToolEnvironment.reset(environment, Task(id="t", prompt="1" + "+1" * extra))
        lengths["1" + "+1" * extra] = len(await chat.prompt(shown.messages, shown.tools))
    prompts = sorted(lengths, key=lambda prompt: lengths[prompt])
    middle = lengths[prompts[len(prompts) // 2]]
    planned = recipe(folder, prompts, ["1+1"], f"model.max_context={middle}")
    (found,) = make_plan(planned, ROOMY).too_long
    assert [prompts[index] for index in found.indexes] == [prompt for prompt in prompts if lengths[prompt] >= middle]


def test_of_very_many_tasks_some_are_looked_at_and_it_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompt_lengths, "LOOKED_AT", 10)
    assert list(chosen(10)) == list(range(10))
    assert chosen(95) == [0, 9, 19, 28, 38, 47, 57, 66, 76, 85]
    plan = make_plan(recipe(folder, [LONG, *["1+1"] * 94], ["1+1"]), ROOMY)
    assert any("1 prompt of 10 that were looked at of 95 leaves no room" in remark for remark in plan.remarks)
    assert plan.too_long[0].indexes == (0,)


def test_prompts_that_the_environment_makes_itself_are_not_judged_by_the_tasks(folder: Path):
    """Its reset shortens them: the first, middle and last task are shown, and none of the others is left out unseen."""
    own = recipe(folder, [LONG, "1+1", LONG, "2+2", LONG], ["1+1"], f"environment={{name: {__name__}:Shortening}}")
    assert make_plan(own, ROOMY).too_long == ()


@pytest.mark.parametrize("text", ["", "plain", "\u0958" * 9, "\ufdfa" * 9, "日本語", "<|im_end|>" * 5, "\ud800"])
async def test_no_text_has_more_tokens_than_the_bound(folder: Path, text: str):
    chat = ChatFormat.load(str(folder))
    frame, whole = [len(await chat.prompt([Message("user", content)])) for content in (".", text)]
    assert whole <= frame + most_tokens([{"role": "user", "content": text}])
