"""An agent of openai-agents with a sub-agent, over the Responses protocol."""

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def solve(task):
    helper = Agent(name="helper", instructions="You add.", tools=[add], model="sub")
    asks = helper.as_tool(tool_name="ask_helper", tool_description="Asks a helper who can add.")
    main = Agent(name="main", instructions="You answer.", tools=[asks], model="main")
    return str(Runner.run_sync(main, task["prompt"]).final_output)
