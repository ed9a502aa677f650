"""Agents that solve the calculator's tasks, as one writes them with the library of OpenAI alone: the agents of a recipe.

Nothing here knows of training. :func:`solve` has one conversation. :func:`solve_in_parts` forgets its conversation after each
call, and goes on with what is left of the expression (compaction); then a sub-agent computes the expression again.
"""

import json
import re
from typing import Any

from openai import OpenAI

from asyncrl.envs.builtin.calculator import calculate
from asyncrl.envs.hosting.tool_messages import ToolError

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "One operation on two integers: +, - or *.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
            "additionalProperties": False,
        },
    },
}
MOST_TURNS = 6
"""Turns after which a conversation is given up."""
_FIRST_OPERATION = re.compile(r"\s*-?\d+\s*[-+*]\s*\d+")


def solve(task: dict[str, Any]) -> str:
    """Solve a task in one conversation; returns the answer."""
    return _converse(OpenAI(), "main", task["messages"])


def solve_in_parts(task: dict[str, Any]) -> dict[str, Any]:
    """Solve a task in conversations of one call each, and have a sub-agent solve it, too.

    Returns:
        the answer, and the sub-agent's reward for agreeing with it.
    """
    client = OpenAI()
    expression = task["prompt"]
    while (operation := _FIRST_OPERATION.match(expression)) and operation.end() < len(expression):
        value = _last_number(_called(client, expression))
        if value is None:
            break
        expression = f"{value}{expression[operation.end() :]}"
    answer = _converse(client, "main", [{"role": "user", "content": expression}])
    checked = _converse(client, "sub", [{"role": "user", "content": task["prompt"]}])
    agrees = _last_number(answer) is not None and _last_number(answer) == _last_number(checked)
    return {"answer": answer, "rewards": {"sub": float(agrees)}}


def _called(client: OpenAI, expression: str) -> str:
    """Have the first call of an expression made; returns the tool's answer."""
    messages: list[Any] = [{"role": "user", "content": expression}]
    message = client.chat.completions.create(model="main", messages=messages, tools=[TOOL]).choices[0].message
    return "".join(_answer(call) for call in message.tool_calls or ())


def _converse(client: OpenAI, model: str, opening: list[Any]) -> str:
    """Play a conversation to its end; returns its last words."""
    messages = list(opening)
    for _ in range(MOST_TURNS):
        message = client.chat.completions.create(model=model, messages=messages, tools=[TOOL]).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        messages += [{"role": "tool", "tool_call_id": call.id, "content": _answer(call)} for call in message.tool_calls]
    return ""


def _answer(call: Any) -> str:
    """Do what a call asks for."""
    try:
        return str(calculate(json.loads(call.function.arguments)["expression"]))
    except (ToolError, ValueError, KeyError, TypeError) as error:
        return f"error: {error}"


def _last_number(text: str) -> int | None:
    found = re.findall(r"-?\d+", text)
    return int(found[-1]) if found else None
