"""Names the protocols in which clients talk to the gateway."""

from enum import StrEnum


class Protocol(StrEnum):
    """A protocol, by the path of its requests."""

    CHAT = "chat/completions"
    MESSAGES = "messages"
    RESPONSES = "responses"
