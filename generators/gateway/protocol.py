"""Names the protocols in which clients talk to the gateway."""

from enum import StrEnum


class Protocol(StrEnum):
    """A protocol, by the end of its requests' path."""

    CHAT = "chat/completions"
    MESSAGES = "messages"
    RESPONSES = "responses"
    GENERATE = "generate"
    """Token ids in and out, as vLLM has it."""

    @property
    def path(self) -> str:
        """The path of its requests, below the address of an episode."""
        return f"inference/v1/{self}" if self is Protocol.GENERATE else f"v1/{self}"
