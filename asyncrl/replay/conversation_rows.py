"""Reads conversations that others have written, from lines of JSON or from rows of Parquet.

What always holds: every row is a conversation, or is refused by its place; nothing of a message is left out without a word; and
either every row of a file has a reward, or none has.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.buffers.tasks.arrow_table import RepeatedKey, without_absent
from asyncrl.core.chat_prompt import read_message
from asyncrl.core.described_tools import described_tools
from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.reward_range import LARGEST_REWARD, is_reward
from asyncrl.core.text import short

MESSAGES, SHARED, ASKED, ANSWERED = "messages", "conversations", "prompt", "completion"
"""Keys that conversations are known by: the first, the second, or the last two together."""
_TOOLS, _SYSTEM = "tools", "system"
_REWARD = "reward"
_UNREAD_REWARDS = ("label", "score", "scores", "rewards", "rating", "is_correct", "correct")
"""Keys under which others say what an episode is worth. Beside a reward they bear on nothing."""
_UNREAD = {
    "chosen": "make each answer a row of its own, with one group and a reward each",
    "rejected": "make each answer a row of its own, with one group and a reward each",
    "functions": "describe them under tools",
}
"""Keys under which others have several answers, or what could be called, and how that is said here."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys under which others have what the assistant thought."""
ASSISTANT = "assistant"


class Said(msgspec.Struct, frozen=True):
    """A message of a conversation.

    Attributes:
        thought: what the assistant thought before it, if that stands apart.
        trained: false if the row says, with ``weight: 0``, that nobody should learn from it.
    """

    message: Message
    thought: str = ""
    trained: bool = True


class Conversation(msgspec.Struct, frozen=True):
    """One conversation.

    Attributes:
        place: where it is, for messages.
        reward: how good it is.
        group: conversations with the same one are compared with each other; None if it is alone.
    """

    place: str
    said: tuple[Said, ...]
    tools: tuple[ToolSpec, ...]
    reward: float = 1.0
    group: str | int | None = None


class _Others(msgspec.Struct, frozen=True):
    """The keys of a row beside the messages."""

    reward: float | bool = 1.0
    group: str | int | None = None


def are_conversations(names: list[str]) -> bool:
    """Whether rows with keys of these names are conversations."""
    return MESSAGES in names or SHARED in names or {ASKED, ANSWERED} <= {*names}


def read_conversations(file: Path) -> Iterator[Conversation]:
    """Yield the conversations of a ``.jsonl`` or ``.parquet`` file.

    Raises:
        RecipeError: one of them is none, or the file holds none.
    """
    rewarded: bool | None = None
    for place, row in _rows(file):
        try:
            if rewarded is not None and rewarded != (_REWARD in row):
                raise ValueError(f"has {'a' if _REWARD in row else 'no'} reward, other than rows before it; give every row one")
            rewarded = _REWARD in row
            yield _conversation(place, row)
        except (msgspec.ValidationError, ValueError) as error:
            problem = f"{place} is no conversation: it {error}"
            raise RecipeError("--from", problem, "correct it, or leave it out (docs/how-to/replay.md)") from error
    if rewarded is None:
        raise RecipeError("--from", f"{file} is empty", "name a file of conversations")


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq

        schema = pq.read_schema(file)
        known = (MESSAGES, SHARED, ASKED, ANSWERED, _TOOLS, _SYSTEM, *_UNREAD_REWARDS, *_UNREAD, *_Others.__struct_fields__)
        table = pq.read_table(file, columns=[name for name in known if name in schema.names])
        if _REWARD in table.column_names and table[_REWARD].null_count == len(table):  # a column is in all rows or in none
            table = table.drop_columns(_REWARD)
        for number, row in enumerate(table.to_pylist(), 1):
            place = f"row {number} of {file}"
            try:
                yield place, {name: without_absent(each, schema.field(name).type) for name, each in row.items()}
            except RepeatedKey as repeated:
                raise RecipeError("--from", f"{place} {repeated}", "leave one out") from repeated
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise RecipeError("--from", f"line {number} of {file} is no JSON: {error}", "correct it") from error
                yield f"line {number} of {file}", row if isinstance(row, dict) else {}


def _conversation(place: str, row: Mapping[str, Any]) -> Conversation:
    """Read one row.

    Raises:
        ValueError, msgspec.ValidationError: it is no conversation; the text reads well after "it".
    """
    plain = {key: value for key, value in row.items() if value is not None}
    if _REWARD in row and _REWARD not in plain:
        raise ValueError(
            "has the reward null; give a number, leave the row out, or take the key out of every row to take 1 for all"
        )
    rewards = {} if _REWARD in row else dict.fromkeys(_UNREAD_REWARDS, "write it as reward, such as 1 or 0, or take it out")
    unread = rewards | _UNREAD
    if key := next((key for key in unread if plain.get(key) not in (None, "", [])), None):
        raise ValueError(f"has {key!r}, which nothing here reads; {unread[key]}")
    said = list[Said]()
    for number, message in enumerate(_messages(plain), 1):
        try:
            said.append(_said(message))
        except ValueError as error:
            raise ValueError(f"has a message {number} that {error}") from error
    if system := plain.get(_SYSTEM):
        if not isinstance(system, str) or (said and said[0].message.role == _SYSTEM):
            raise ValueError(f"has {_SYSTEM} {short(system)}; give one text, there or as the first message")
        said.insert(0, Said(Message("system", system)))
    try:
        tools = described_tools(_decoded(plain, _TOOLS))
    except ValueError as error:
        raise ValueError(f"has {error}") from error
    try:
        others = msgspec.convert({key: plain[key] for key in _Others.__struct_fields__ if key in plain}, _Others)
    except msgspec.ValidationError as error:
        remedy = "give a number as reward, and a text or a whole number as group"
        raise ValueError(f"has another reward or group than is known: {error}; {remedy}") from error
    if not is_reward(others.reward):
        raise ValueError(f"has the reward {others.reward}; give a number, of at most {LARGEST_REWARD:g} in size")
    return Conversation(place, tuple(said), tools, float(others.reward), others.group)


def _messages(row: Mapping[str, Any]) -> list[object]:
    """Return the messages of a row in any of the forms in which data sets have them."""
    for key in (MESSAGES, SHARED):
        if key in row:
            return _listed(key, _decoded(row, key))
    if ASKED in row and ANSWERED in row:
        return [*_part(row, ASKED, "user"), *_part(row, ANSWERED, ASSISTANT)]
    raise ValueError(f"has no {MESSAGES!r}, only {', '.join(map(repr, row)) or 'nothing'}")


def _part(row: Mapping[str, Any], key: str, role: str) -> list[object]:
    """Return the messages that a row has under ``key``, also as JSON text, or the one of ``role`` whose text is there."""
    found = row[key]
    if not isinstance(found, str):
        return _listed(key, found)
    try:
        read = json.loads(found) if found.lstrip().startswith("[") else None
    except (ValueError, RecursionError):
        read = None
    if isinstance(read, list) and read and all(isinstance(each, dict) and ("role" in each or "from" in each) for each in read):
        return read
    return [{"role": role, "content": found}]


def _listed(key: str, found: object) -> list[object]:
    if not isinstance(found, list):
        raise ValueError(f"has {key} {short(found)}; give a list of messages")
    return found


def _decoded(row: Mapping[str, Any], key: str) -> Any:
    """Return a list that a row has, or that is written there as JSON text; None if it has none."""
    found = row.get(key)
    if not isinstance(found, str):
        return found
    try:
        return json.loads(found)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has {key} {short(found)}, which is no JSON ({error})") from error


def _said(message: object) -> Said:
    if not isinstance(message, Mapping):
        return Said(read_message(message))
    own = {key: value for key, value in message.items() if value is not None}
    thoughts = {key: own.pop(key) for key in _THOUGHTS if key in own and own.get("role") == ASSISTANT}
    thoughts = {key: thought for key, thought in thoughts.items() if thought}
    if other := next((thought for thought in thoughts.values() if not isinstance(thought, str)), None):
        raise ValueError(f"has the thought {short(other)}; give a text")
    if len(set(thoughts.values())) > 1:
        raise ValueError(f"has different thoughts under {' and '.join(thoughts)}; give one text")
    thought = next(iter(thoughts.values()), "")
    read, weight = read_message(own), own.get("weight", 1)
    if not isinstance(weight, int | float) or weight not in (0, 1):
        raise ValueError(f"has weight {short(weight)}; give 1, or 0 if nobody should learn from it")
    return Said(read, thought, trained=bool(weight))
