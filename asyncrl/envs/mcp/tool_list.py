"""The tools that a server lists, and what has become of them since.

The model has read its tools in the prompt, so an episode keeps those with which it began.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.messages import ToolSpec
from asyncrl.envs.mcp.http_answers import asked_wait

if TYPE_CHECKING:
    from mcp import Client

logger = logging.getLogger(__name__)

MOST_PAGES = 100
"""Pages of a list of tools that are read."""
COMPARE_AGAIN_S = 1.0
"""Seconds between two looks at the tools, however often a server tells of changes."""
LISTEN_AGAIN_S = 5.0
"""Seconds after which a server that has stopped telling of changes is asked for them again."""


class TooManyPages(AsyncRLError):
    """The tools are on more than :data:`MOST_PAGES` pages."""


async def all_tools(client: "Client") -> tuple[ToolSpec, ...]:
    """List all tools.

    Raises:
        TooManyPages: they are on too many pages.
        MCPError: the server does not list them.
    """
    tools: list[ToolSpec] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += [ToolSpec(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
        cursor = page.next_cursor
        if not cursor:  # some servers end with an empty one
            return tuple(tools)
    raise TooManyPages(f"the tools are on more than {MOST_PAGES} pages; list more on a page")


async def changed_tools(client: "Client", used: Sequence[ToolSpec], server: str, *, all_are_used: bool) -> list[str]:
    """Return the names of the tools that are ``used`` and can no longer be called as they were.

    Further ones are only logged, if all are used, and so are other descriptions, in which some servers tell the time: they are
    shown from the next session on. A busy server is asked again.
    """
    from mcp import MCPError
    from pydantic import ValidationError

    while True:
        try:
            listed = {tool.name: tool for tool in await all_tools(client)}
            break
        except (MCPError, TooManyPages, ValidationError) as error:
            if (wait_s := asked_wait(error)) is None:
                logger.warning("%s says that its tools have changed, and does not list them: %s", server, error)
                return []
            await asyncio.sleep(wait_s)
    if (further := listed.keys() - {tool.name for tool in used}) and all_are_used:
        logger.info("%s has tools that running episodes are not shown: %s", server, ", ".join(sorted(further)))
    others = [tool for tool in used if listed.get(tool.name) != tool]
    changed = [
        tool.name
        for tool in others
        if tool.name not in listed
        or _without_descriptions(listed[tool.name].parameters) != _without_descriptions(tool.parameters)
    ]
    if described := [tool.name for tool in others if tool.name not in changed]:
        logger.info("%s describes tools otherwise than running episodes are shown: %s", server, ", ".join(described))
    return changed


def _without_descriptions(schema: Any) -> Any:
    """Return a JSON schema without what it says to readers. A parameter may be named so; its schema is no text."""
    if isinstance(schema, Mapping):
        return {
            key: _without_descriptions(value)
            for key, value in schema.items()
            if not (key == "description" and isinstance(value, str))
        }
    return [_without_descriptions(each) for each in schema] if isinstance(schema, list) else schema


async def compare_when(told: asyncio.Event, compare: Callable[[], Awaitable[None]]) -> None:
    """Call ``compare`` after changes were ``told``, once for all that were told by then, until this is cancelled."""
    while True:
        await told.wait()
        told.clear()
        await compare()
        await asyncio.sleep(COMPARE_AGAIN_S)


async def listen_for_changes(client: "Client", told: asyncio.Event) -> None:
    """Have a server of the newest protocol tell of changes, until this is cancelled; older ones do so unasked.

    Args:
        told: is set when changes may have been missed. What a server tells, the client's message handler hears.
    """
    from mcp import MCPError
    from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
    from mcp.types import METHOD_NOT_FOUND

    tells = client.server_capabilities.tools
    while tells is not None and tells.list_changed:
        try:
            async with client.listen(tools_list_changed=True) as changes:
                if not changes.honored.tools_list_changed:
                    return
                told.set()
                async for _ in changes:
                    pass
        except ListenNotSupportedError:
            return
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:
                return
            logger.debug("changes of tools are not told now: %s", error)
        except SubscriptionLost as error:
            logger.debug("changes of tools are not told now: %s", error)
        await asyncio.sleep(LISTEN_AGAIN_S)
