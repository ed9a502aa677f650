"""An agent of pydantic-ai, over chat completions and over Anthropic's protocol."""

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel


def solve(task):
    return " ".join(answer(model, task["prompt"]) for model in (OpenAIChatModel("chat"), AnthropicModel("anthropic")))


def answer(model, prompt):
    agent = Agent(model, system_prompt="You answer.")

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add two integers."""
        return a + b

    return agent.run_sync(prompt).output
