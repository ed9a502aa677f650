"""What is told to a client whose request has no answer, in the form that its protocol has for errors.

What always holds: a client library raises the error that it has for the status, and none of them sends a refused request again.
Too long a prompt is told in the words that each protocol has for it, by which agents know that they have to compact.
"""

from enum import StrEnum
from typing import Any

from asyncrl.generators.gateway.protocol import Protocol

OVER, DEAD = 410, 503
"""The status of requests to an episode that is over, and to an engine that is dead."""


class Kind(StrEnum):
    """What is wrong."""

    REFUSED = "refused"
    TOO_LONG = "too long"
    NOT_FOUND = "not found"
    OVER = "over"
    DEAD = "dead"
    FAILED = "failed"


_STATUS = {Kind.REFUSED: 400, Kind.TOO_LONG: 400, Kind.NOT_FOUND: 404, Kind.OVER: OVER, Kind.DEAD: DEAD, Kind.FAILED: 500}
_OPENAI_CODE = {Kind.TOO_LONG: "context_length_exceeded", Kind.OVER: "episode_over", Kind.DEAD: "engine_dead"}
_ANTHROPIC_TYPE = {400: "invalid_request_error", 404: "not_found_error", OVER: "invalid_request_error"}


class Problem(Exception):
    """A request cannot be answered.

    Args:
        text: what is wrong, and what to do, for whoever reads the agent's log.
        parameter: the parameter of the request that is wrong; empty if it is not about one.
    """

    def __init__(self, kind: Kind, text: str, parameter: str = "") -> None:
        super().__init__(text)
        self.kind, self.text, self.parameter = kind, text, parameter

    @property
    def status(self) -> int:
        """The HTTP status."""
        return _STATUS[self.kind]

    def told_in(self, protocol: Protocol) -> dict[str, Any]:
        """Return the body of the answer."""
        if protocol is Protocol.MESSAGES:
            return {"type": "error", "error": {"type": _ANTHROPIC_TYPE.get(self.status, "api_error"), "message": self.text}}
        return {
            "error": {
                "message": self.text,
                "type": "invalid_request_error" if self.status < 500 else "server_error",
                "param": self.parameter or None,
                "code": _OPENAI_CODE.get(self.kind),
            }
        }


def too_long(protocol: Protocol, prompt: int, most: int) -> Problem:
    """Return the problem of a prompt of so many tokens, where there is room for ``most``, a turn included."""
    if protocol is Protocol.MESSAGES:
        return Problem(Kind.TOO_LONG, f"prompt is too long: {prompt} tokens > {most} maximum")
    parameter = {Protocol.RESPONSES: "input", Protocol.GENERATE: "token_ids"}.get(protocol, "messages")
    text = f"This model's maximum context length is {most} tokens. However, your messages resulted in {prompt} tokens."
    return Problem(Kind.TOO_LONG, f"{text} Please reduce the length of the messages.", parameter)
