"""The examples of docs/how-to/rewards.md and docs/how-to/environments.md work as they stand."""

import re
from pathlib import Path

import pytest

from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs import Action, Environment, ToolEnvironment, tool

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
EXAMPLES = [
    pytest.param(example, id=f"{page} {number}")
    for page in ("environments", "rewards")
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL))
]


def environment_of(example: str) -> type[Environment]:
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(example, "page.md", "exec"), names)
    found = [each for each in names.values() if isinstance(each, type) and issubclass(each, Environment)]
    (own,) = (each for each in found if each not in (Environment, ToolEnvironment))
    return own


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_defines_an_environment(example: str):
    assert environment_of(example)()


def test_there_are_examples():
    assert len(EXAMPLES) == 8


async def test_a_metric_of_ones_own_is_beside_the_counts_of_calls():
    (example,) = (each.values[0] for each in EXAMPLES if "look_ups" in each.values[0])

    class Counted(environment_of(example)):
        @tool
        async def look_up(self, word: str) -> str:
            """Look up."""
            return word

    environment = Counted()
    await environment.reset(Task(id="t", prompt="p", data={"answer": "a"}))
    result = await environment.step(Action("", (ToolCall("look_up", {"word": "a"}), ToolCall("unknown", {}))))
    assert result.metrics == {"look_ups": 1.0, "tool_calls": 1.0, "tool_errors": 0.0, "malformed_calls": 1.0}


async def test_an_answer_that_is_handed_in_by_a_tool_ends_the_episode_and_is_judged():
    (example,) = (each.values[0] for each in EXAMPLES if "submitted" in each.values[0])
    environment = environment_of(example)()
    await environment.reset(Task(id="t", prompt="p", data={"answer": "a"}))
    result = await environment.step(Action("", (ToolCall("submit", {"answer": "a"}),)))
    assert (result.reward, result.done, [call.tool for call in result.calls]) == (1.0, True, ["submit"])


def test_the_first_environment_has_no_findings(tmp_path: Path, monkeypatch):
    from asyncrl.authoring.check import check
    from asyncrl.authoring.subject import compose_for_author

    (tmp_path / "dictionary_of_the_page.py").write_text(EXAMPLES[0].values[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (checked,) = check(compose_for_author("dictionary_of_the_page:Dictionary"), None, lambda note: None)
    assert checked.findings == ()
