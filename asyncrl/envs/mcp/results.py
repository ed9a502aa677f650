"""What a model is shown of the result of a tool of an MCP server: its text, and what its structured content says beside it."""

from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.core.text import pluralize

if TYPE_CHECKING:
    from mcp.types import CallToolResult

LONGEST_COMPARED = 1 << 20
"""Characters of text that are read as JSON, which takes the event loop milliseconds. A longer text is taken to say it all."""


def result_text(result: "CallToolResult") -> str:
    """Return a tool's result as the text that the model is shown."""
    parts = [_block_text(block) for block in result.content]
    texts = [str(block.text) for block in result.content if block.type == "text"]
    structured = result.structured_content
    if structured is not None and not _says(texts, structured):
        parts.append(msgspec.json.encode(structured).decode())
    return "\n".join(parts)


def _says(texts: list[str], structured: Any) -> bool:
    """Whether texts are the structured content, as servers repeat it for clients that do not read it.

    The SDK's servers wrap what is no object as ``{"result": ...}``, and repeat each element of a list in a text of its own.
    """
    if sum(map(len, texts)) > LONGEST_COMPARED:
        return True
    read = [_read(text) for text in texts]
    inner = [structured["result"]] if isinstance(structured, dict) and list(structured) == ["result"] else []
    for value in (structured, *inner):
        if len(texts) == 1 and value in (texts[0], read[0]):
            return True
        if isinstance(value, list) and len(texts) == len(value) > 0:
            return all(each in pair for each, *pair in zip(value, texts, read, strict=True))
    return False


def _read(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


def _block_text(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "resource":
            text = getattr(block.resource, "text", None)
            return f"[{block.resource.uri}: not text]" if text is None else str(text)
        case "resource_link":
            return f"[{block.name}: {block.uri}]"
        case kind:
            return f"[{kind}, {pluralize(len(block.data), 'character')} of {block.mime_type}: not shown]"
