"""Clients that play episodes through a gateway, in a process of their own: ``python gateway_clients.py bare|openai``.

It reads what to play from the first line of its standard input, says that it is ready, begins with the next line, and says when
all episodes have ended. The bare client writes HTTP by hand, and costs as little as a client can.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

Ask = Callable[[list[Any]], Awaitable[dict[str, Any]]]
"""Asks for the turn after some messages."""


def main(arguments: Sequence[str]) -> None:
    """Play what the standard input says."""
    (kind,) = arguments
    asyncio.run(_play_all(kind, json.loads(sys.stdin.readline())))


async def _play_all(kind: str, plan: dict[str, Any]) -> None:
    open_client = {"bare": _bare, "openai": _openai}[kind]
    clients = [await open_client(url, plan["tool"]) for url in plan["urls"]]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    await asyncio.gather(*map(_play, clients, plan["prompts"], [plan["turns"]] * len(clients)))
    sys.stdout.write("ended\n")
    sys.stdout.flush()


async def _play(ask: Ask, prompt: str, turns: int) -> None:
    messages: list[Any] = [{"role": "user", "content": prompt}]
    for _ in range(turns):
        message = await ask(messages)
        messages.append(message)
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(arguments["a"] + arguments["b"])})


async def _bare(url: str, tool: Any) -> Ask:
    """Return a client that has one connection."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)

    async def ask(messages: list[Any]) -> dict[str, Any]:
        body = json.dumps({"model": "main", "messages": messages, "tools": [tool]}).encode()
        head = f"POST {at.path}/chat/completions HTTP/1.1\r\nhost: {at.netloc}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        message: dict[str, Any] = json.loads(await reader.readexactly(length))["choices"][0]["message"]
        return message

    return ask


async def _openai(url: str, tool: Any) -> Ask:
    """Return a client of OpenAI's library."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="none")

    async def ask(messages: list[Any]) -> dict[str, Any]:
        answer = await client.chat.completions.create(model="main", messages=messages, tools=[tool])
        return answer.choices[0].message.model_dump(exclude_none=True)

    return ask


if __name__ == "__main__":
    main(sys.argv[1:])
