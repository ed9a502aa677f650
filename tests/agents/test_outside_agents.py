"""Agents that others made, each in an environment of its own, play through the gateway against scripted answers.

``python tests/agents/install.py`` makes the environments; agents that are not installed are skipped. None of them reaches any
address but the gateway's.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from install import PACKAGES, interpreter, is_installed

from asyncrl.authoring.agents.agent_check import AgentChecked
from asyncrl.cli.main import main
from asyncrl.core.recipe.environment import ClassEnvironmentConfig

PROGRAMS = Path(__file__).parent / "programs"
CONTEXT = 32_000
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks a host for prices
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model's tokenizer and template, and a configuration with a longer context; no weights."""
    from asyncrl.learners.tiny.settings import Size
    from asyncrl.learners.tiny.tokenizer_alone import tiny_tokenizer
    from asyncrl.learners.tiny.warmup import config_of

    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer({"": ClassEnvironmentConfig(name="calculator")}, 0)
    tokenizer.save_pretrained(folder)
    config = config_of(tokenizer, Size(context=CONTEXT), [int(tokenizer.eos_token_id)])
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)
    return folder


@pytest.fixture
def play(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def check(name: str, program: str, script: str = "") -> AgentChecked:
        recipe = {
            "name": "outside",
            "steps": 1,
            "model": {"path": str(model), "max_context": CONTEXT},
            "sampling": {"max_turn_tokens": 200},
            "learner": {"micro_batch_tokens": CONTEXT},
            "environment": {
                "kind": "agent",
                "function": f"{program}:solve",
                "python": str(interpreter(name)),
                "reward": "asyncrl.envs.mcp.calculator:reward",
                "tasks": "asyncrl.envs.mcp.calculator:make_tasks",
                "variables": {**QUIET, "MODEL_FOLDER": str(model)},
            },
            "tasks": {"train": 10, "evaluation": 2},
        }
        (tmp_path / "outside.yaml").write_text(json.dumps(recipe))
        (tmp_path / "script").write_text(script)
        monkeypatch.chdir(PROGRAMS)
        options = ["--episodes", "2", "--json", str(tmp_path / "found.json")]
        options += ["--script", str(tmp_path / "script")] if script else []
        assert main(["agent", "check", str(tmp_path / "outside.yaml"), *options]) == 0
        (one,) = msgspec.json.decode((tmp_path / "found.json").read_bytes(), type=list[AgentChecked])
        assert one.episodes == 2
        return one

    return check


def installed(name: str) -> Any:
    return pytest.mark.skipif(not is_installed(name), reason=f"{PACKAGES[name]} is not installed: tests/agents/install.py")


@pytest.mark.parametrize(
    ("name", "program", "roles", "protocols"),
    [
        pytest.param(*row, marks=installed(row[0]), id=row[0])
        for row in (
            ("openai-agents", "openai_agents_program", {"main", "sub"}, {"responses"}),
            ("pydantic-ai", "pydantic_ai_program", {"chat", "anthropic"}, {"chat/completions", "messages"}),
            ("langgraph", "langgraph_program", {"main"}, {"chat/completions"}),
        )
    ],
)
def test_agents_whose_turns_extend_their_trajectories(
    play, name: str, program: str, roles: set[str], protocols: set[str]
) -> None:
    one = play(name, program)
    assert (one.roles.keys(), one.protocols.keys()) == (roles, protocols)
    assert one.continued == 1.0
    assert one.findings == ()


@installed("smolagents")
def test_smolagents_rewrites_its_last_answer_at_every_step(play) -> None:
    one = play("smolagents", "smolagents_program")
    problems = " ".join(each.problem for each in one.findings)
    assert one.continued == 0.0
    assert "history rewritten: message 3, the assistant's message: it has fewer calls" in problems
    assert one.asked_in_vain.keys() == {"not enforced tool_choice"}


@installed("mini-swe-agent")
def test_mini_swe_agent_drops_a_reply_without_a_call(play) -> None:
    one = play("mini-swe-agent", "mini_swe_program")
    (finding,) = one.findings
    assert "the assistant's message: the user's comes in its place ('Tool call error:" in finding.problem


@installed("mini-swe-agent")
def test_mini_swe_agent_extends_its_trajectory_if_each_turn_has_a_call(play) -> None:
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo 42"
    one = play("mini-swe-agent", "mini_swe_program", f"bash(command='ls')\nbash(command={submit!r})\n")
    assert (one.continued, one.findings) == (1.0, ())
    assert one.roles["main"].requests == 4


@installed("verifiers")
def test_verifiers_samples_in_token_ids_and_extends_its_trajectory(play) -> None:
    one = play("verifiers", "verifiers_program")
    assert one.protocols == {"generate": 6}
    assert (one.continued, one.findings) == (1.0, ())
    assert one.asked_in_vain.keys() == {"replaced stop_token_ids", "replaced temperature"}
