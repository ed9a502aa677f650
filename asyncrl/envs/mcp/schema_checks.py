"""Checks the schemas of a server's tools, and by them what a model passes, in a process that is killed at a deadline.

What always holds: whatever a server sends for a schema, and whatever a model passes, the event loop goes on, and nothing is
fetched.
"""

import json
from collections.abc import Mapping
from typing import Any

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.messages import ToolSpec
from asyncrl.envs.hosting.guarded_calls import Overdue
from asyncrl.envs.hosting.process_functions import ProcessFunctions
from asyncrl.envs.hosting.tool_processes import ProcessEnded, ToolProcesses

CHECK_S = 5.0
"""Deadline of one check. It takes a thousandth of a second, unless somebody wants it to take long."""
LARGEST_SCHEMA = 256 << 10
"""Bytes of a tool's schema. The model reads it in its prompt, so that it cannot be large."""
LARGEST_ARGUMENTS = 8 << 20
"""Bytes of the arguments of one call."""
MOST_KNOWN = 1_000
"""Schemas that are remembered to be in order."""
PROCESSES = 2


class SchemaChecks:
    """The checks of one worker for one server.

    Args:
        server: what errors call the server.
    """

    def __init__(self, server: str) -> None:
        self._processes = ToolProcesses(f"checks of {server}", most=PROCESSES)
        self._known: set[str] = set()

    async def wrong_with(self, spec: ToolSpec) -> str:
        """Return what is wrong with a tool's schema; empty if nothing is."""
        try:
            schema = schema_text(spec.parameters)
        except (ValueError, RecursionError) as error:
            return f"the schema of tool {spec.name} cannot be read: {error}"
        if len(schema) > LARGEST_SCHEMA:
            return f"the schema of tool {spec.name} has {len(schema):,} bytes, and may have {LARGEST_SCHEMA:,}"
        if schema in self._known:
            return ""
        problem = await self._ask("wrong_with", {"schema": schema}, "is one that takes longer than {:g} s to check")
        if problem:
            return f"the schema of tool {spec.name} {problem}"
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known.add(schema)
        return ""

    async def misfit(self, schema: str, arguments: Mapping[str, Any]) -> str:
        """Return what keeps arguments from fitting a schema that is in order; empty if nothing does."""
        try:
            value = json.dumps(arguments)
        except (ValueError, RecursionError) as error:
            return f"the arguments cannot be sent: {error}"
        if len(value) > LARGEST_ARGUMENTS:
            return f"the arguments have {len(value):,} bytes, and may have {LARGEST_ARGUMENTS:,}"
        late = "checking the arguments by the tool's schema took longer than {:g} s"
        return await self._ask("misfit", {"schema": schema, "value": value}, late)

    async def _ask(self, function: str, arguments: Mapping[str, str], late: str) -> str:
        try:
            return await SchemaProcess.call(self._processes, function, arguments, CHECK_S)
        except Overdue:
            return late.format(CHECK_S)
        except ProcessEnded as error:
            return f"cannot be checked: {error}"
        except EnvironmentBroken as error:
            if error.raised is None:  # no process could be started
                raise
            return f"cannot be checked: {error.raised.problem}"

    def close(self) -> None:
        """End the processes."""
        self._processes.close()


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a schema as a process is sent it; raises ``ValueError`` or ``RecursionError`` if JSON cannot carry it."""
    return json.dumps(schema)


class SchemaProcess(ProcessFunctions):
    """The functions that the process of a check runs."""

    @staticmethod
    def wrong_with(schema: str) -> str:
        """Say what is wrong with a schema; empty if nothing is."""
        from asyncrl.envs.mcp import schemas

        return schemas.wrong_with(json.loads(schema))

    @staticmethod
    def misfit(schema: str, value: str) -> str:
        """Say why a value does not fit a schema; empty if it does."""
        from asyncrl.envs.mcp import schemas

        return schemas.misfit(json.loads(schema), json.loads(value))
