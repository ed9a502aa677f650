"""A tool-calling agent of smolagents, over chat completions: the worst case, as it rewrites what was said at every step."""

import os

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: one of them.
        b: the other.
    """
    return a + b


def solve(task):
    model = OpenAIModel("main", api_base=os.environ["OPENAI_BASE_URL"], api_key="none")
    return str(ToolCallingAgent(tools=[add], model=model, max_steps=4, verbosity_level=0).run(task["prompt"]))
