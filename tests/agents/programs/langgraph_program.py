"""An agent of langgraph, over chat completions."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def solve(task):
    agent = create_react_agent(ChatOpenAI(model="main", temperature=0), [add])
    return agent.invoke({"messages": [("user", task["prompt"])]})["messages"][-1].content
