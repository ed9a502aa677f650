"""Says which parameters of a request are honoured, and takes the others out before vLLM sees them.

What always holds: how tokens are sampled is the recipe's alone, as learners take log-probabilities to be of that distribution. A
parameter that would change it is replaced, or refused. What agents ask for in passing, a format of the answer or that a tool is
called, is not enforced, unless the recipe says that such requests are refused: no log-probability is right where sampling was
constrained. Whatever is not honoured is named.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from asyncrl.generators.gateway.content import as_read, unread, unread_system, with_quotes_as_text
from asyncrl.generators.gateway.messages import role_of
from asyncrl.generators.gateway.problems import Kind, Problem
from asyncrl.generators.gateway.protocol import Protocol

Constrained = Literal["free", "refuse"]
"""What becomes of requests that ask for a format or a call: they are sampled as all others, or refused."""

HONOURED = {
    Protocol.CHAT: {
        *("messages", "model", "stream", "stream_options", "stop", "max_tokens", "max_completion_tokens", "tools", "tool_choice"),
        *("parallel_tool_calls", "chat_template_kwargs", "reasoning_effort", "include_reasoning", "logprobs"),
        *("return_token_ids", "return_tokens_as_token_ids"),
    },
    Protocol.MESSAGES: {
        *("messages", "model", "system", "stream", "stop_sequences", "max_tokens", "tools", "tool_choice", "thinking"),
        *("output_config", "chat_template_kwargs"),
    },
    Protocol.RESPONSES: {
        *("input", "instructions", "model", "stream", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls"),
        *("reasoning", "text", "store"),
    },
    Protocol.GENERATE: {"token_ids", "model", "stream", "stream_options", "sampling_params", "return_token_ids", "request_id"},
}
"""What of a request bears on its answer. All else is replaced, not enforced, ignored, or refused."""
_REPLACED = {"temperature", "top_p", "top_k", "min_p", "seed"}
_NEUTRAL: Mapping[str, object] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "top_logprobs"), 0),
    **dict.fromkeys(("n", "repetition_penalty", "length_penalty"), 1),
    **dict.fromkeys(("echo", "use_beam_search", "continue_final_message", "background"), False),
    **{"add_generation_prompt": True, "logit_bias": {}},
    **{key: [] for key in ("bad_words", "allowed_token_ids", "functions", "documents")},
    **dict.fromkeys(("prompt_logprobs", "previous_response_id", "conversation", "prompt"), None),
    **dict.fromkeys(("audio", "chat_template"), None),
}
"""Parameters of requests that are refused, unless they have the value with which they do nothing."""
_NO_IDS = {"previous_response_id", "conversation"}
"""Ids of what a server has kept. Clients whose language has no optional texts send an empty one for none."""
_UNLIMITED = -1
"""The limit of tokens that clients of llama.cpp and the like send for none. The other protocols know no such number."""
_WHY_REFUSED = {
    **dict.fromkeys(("n", "use_beam_search"), "each request has one turn; send several"),
    **dict.fromkeys(("previous_response_id", "conversation", "prompt"), "nothing is kept for it; send the whole conversation"),
    **dict.fromkeys(("top_logprobs", "prompt_logprobs"), "only sampled tokens have log-probabilities"),
    **dict.fromkeys(("echo", "continue_final_message", "add_generation_prompt"), "a turn is what the policy samples, whole"),
    "background": "a turn is answered by its own request",
    "functions": "the policy would not see them; write them as tools",
    "documents": "the policy would not see them; write them into a message",
    "audio": "the policy writes text alone",
    "chat_template": "it is the recipe's (model.chat_template)",
}
_NOTHING: tuple[object, ...] = ("", [], {})
"""Values with which a parameter asks for nothing; libraries send some by default."""
_ASKS_ANYHOW = {"web_search_options"}
"""Parameters that ask for something by being there."""
_LIMITS = {
    Protocol.CHAT: ("max_completion_tokens", "max_tokens"),
    Protocol.MESSAGES: ("max_tokens",),
    Protocol.RESPONSES: ("max_output_tokens",),
    Protocol.GENERATE: ("max_tokens",),
}
_SAMPLING_HONOURED = {"max_tokens", "stop", "logprobs", "skip_special_tokens"}
_SAMPLING_REPLACED = _REPLACED | {"stop_token_ids"}
_OF_TOOLS = {"tools", "tool_choice", "parallel_tool_calls"}
_FORMATS = {
    *("response_format", "structured_outputs"),
    "output_format",  # of the Messages protocol before output_config
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),  # of earlier releases of vLLM
}
_CALLED = ("function", "custom", "namespace")
"""Types of tools of the Responses protocol that the policy can call; what others say, a provider does."""
_OF_POLICY = {"reasoning", "function_call", "custom_tool_call"}
"""Types of items of the Responses protocol that are of a turn, beside its message."""
_SYSTEM = ("instructions", "system")
"""Parameters that are the system message before the conversation."""


class Settled(msgspec.Struct, frozen=True):
    """A request as vLLM gets it.

    Attributes:
        replaced: parameters for which the recipe's are used.
        unenforced: parameters that would constrain what is sampled, and do not.
        ignored: parameters that do nothing here.
    """

    body: dict[str, Any]
    replaced: tuple[str, ...] = ()
    unenforced: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def settled(
    body: Mapping[str, Any], protocol: Protocol, *, most_tokens: int, constrained: Constrained, system_later: bool
) -> Settled:
    """Return what of a request is honoured.

    Args:
        most_tokens: the most tokens of a turn, to which the request's limit is cut.
        system_later: whether the chat template takes system messages after others; if not, they become the user's.

    Raises:
        Problem: the request asks for what cannot be.
        TypeError, ValueError, AttributeError, KeyError: it is no request of this protocol.
    """
    given = {name: value for name, value in body.items() if value is not None}
    _check_neutral(given)
    left = {name: value for name, value in given.items() if name in HONOURED[protocol]}
    if not left.get("tools", True):  # which vLLM refuses
        left = {name: value for name, value in left.items() if name not in _OF_TOOLS}
    if protocol is Protocol.MESSAGES:
        _refuse(_uncallable(left.get("tools", ())), "tools")
    unenforced = [*_unconstrained(left, protocol), *sorted(name for name in _FORMATS if _is_format(given.get(name)))]
    if unenforced and constrained == "refuse":
        raise _constrains(unenforced[0])
    replaced = sorted(given.keys() & _REPLACED)
    _cut_limit(left, protocol, most_tokens)
    if "budget_tokens" in left.get("thinking", ()):
        left["thinking"] = {"type": "adaptive"}
        replaced.append("thinking.budget_tokens")
    for name in _SYSTEM:
        _refuse(unread_system(left.get(name), name), name)
    if isinstance(left[name := _name_of_conversation(protocol)], list):
        begins_with_system = any(left.get(each) for each in _SYSTEM)
        left[name] = _conversation(left[name], protocol, begins_with_system, system_later)
        _check_end(left[name], name)
    asked = {name for name, value in given.items() if value not in _NOTHING or name in _ASKS_ANYHOW}
    ignored = asked - HONOURED[protocol] - _REPLACED - _FORMATS - _NEUTRAL.keys()
    if protocol is Protocol.RESPONSES:
        ignored |= {f"tools.{kind}" for tool in left.get("tools", ()) if (kind := tool["type"]) not in _CALLED}
    return Settled(left, tuple(replaced), tuple(unenforced), tuple(sorted(ignored)))


def counted(body: Mapping[str, Any], *, system_later: bool) -> dict[str, Any]:
    """Return a request of the Messages protocol whose tokens are counted, as :func:`settled` returns one that has a turn.

    Raises:
        Problem, TypeError, ValueError, AttributeError, KeyError: see there; a conversation may end as it likes.
    """
    given = {name: value for name, value in body.items() if value is not None}
    _refuse(_uncallable(given.get("tools", ())), "tools")
    _refuse(unread_system(given.get("system"), "system"), "system")
    if isinstance(messages := given.get("messages"), list):
        begins_with_system = bool(given.get("system"))
        given["messages"] = _conversation(messages, Protocol.MESSAGES, begins_with_system, system_later)
    return given


def settled_sampling(body: Mapping[str, Any], *, most_tokens: int, constrained: Constrained) -> Settled:
    """Return what is honoured of a request in token ids, whose parameters of sampling stand in a dictionary of their own.

    Raises:
        Problem, TypeError, ValueError, AttributeError, KeyError: see :func:`settled`.
    """
    given = {name: value for name, value in body.items() if value is not None}
    for name in ("features", "content_parts"):
        if given.get(name):
            raise Problem(Kind.REFUSED, f"{name} is not supported: the policy reads text alone", name)
    sampling = {name: value for name, value in dict(given.get("sampling_params", {})).items() if value is not None}
    _check_neutral({"top_logprobs": max(0, int(sampling.get("logprobs", 0)) - 1), **sampling})
    unenforced = sorted(name for name in _FORMATS if _is_format(sampling.get(name)))
    if unenforced and constrained == "refuse":
        raise _constrains(unenforced[0])
    left = {name: value for name, value in sampling.items() if name in _SAMPLING_HONOURED}
    _cut_limit(left, Protocol.GENERATE, most_tokens)
    honoured = {name: value for name, value in given.items() if name in HONOURED[Protocol.GENERATE]}
    ignored = ({name for name, value in given.items() if value not in _NOTHING} - honoured.keys()) | (
        sampling.keys() - _SAMPLING_HONOURED - _SAMPLING_REPLACED - _FORMATS - _NEUTRAL.keys()
    )
    replaced = tuple(sorted(sampling.keys() & _SAMPLING_REPLACED))
    return Settled(honoured | {"sampling_params": left}, replaced, tuple(unenforced), tuple(sorted(ignored)))


def _check_neutral(given: Mapping[str, Any]) -> None:
    """Refuse parameters that would change what log-probabilities mean, or that ask for what there is not."""
    for name, neutral in _NEUTRAL.items():
        if given.get(name, neutral) != neutral and not (name in _NO_IDS and given[name] == ""):
            why = _WHY_REFUSED.get(name, "it changes what is sampled, and with it what log-probabilities mean")
            raise Problem(Kind.REFUSED, f"{name} is not supported: {why}", name)


def _cut_limit(left: dict[str, Any], protocol: Protocol, most_tokens: int) -> None:
    """Cut the limit of a turn's tokens to the recipe's."""
    first, *others = _LIMITS[protocol]
    asked = [most_tokens]
    for name in (first, *others):
        try:
            limit = int(left.pop(name)) if name in left else most_tokens
        except (TypeError, ValueError) as error:
            raise Problem(Kind.REFUSED, f"{name} must be a whole number: {error}", name) from error
        asked += [] if protocol is Protocol.CHAT and limit == _UNLIMITED else [limit]
    left[first] = min(asked)
    if left[first] < 1:
        text = f"a turn needs at least one token, and the request allows {left[first]}; raise {first}"
        remedy = "" if protocol is Protocol.MESSAGES else ", or leave it out for as many as the recipe allows"
        raise Problem(Kind.REFUSED, text + remedy, first)


def _constrains(name: str) -> Problem:
    text = f"{name} would constrain what is sampled, and the recipe has such requests refused (constrained: refuse)"
    return Problem(Kind.REFUSED, text, name)


def _unconstrained(left: dict[str, Any], protocol: Protocol) -> Iterator[str]:
    """Take out of a request what constrains its turn, and yield the names of what was there."""
    choice = left.get("tool_choice")
    if protocol is Protocol.MESSAGES:
        if choice is not None and choice["type"] not in ("auto", "none"):
            left["tool_choice"] = {name: value for name, value in choice.items() if name != "name"} | {"type": "auto"}
            yield "tool_choice"
        if "format" in left.get("output_config", ()):
            left["output_config"] = {name: value for name, value in left["output_config"].items() if name != "format"}
            yield "output_config.format"
        return
    if choice not in (None, "auto", "none"):
        left["tool_choice"] = "auto"
        yield "tool_choice"
    if "text" in left and _is_format(left.pop("text").get("format")):
        yield "text.format"


def _is_format(asked: Any) -> bool:
    return asked is not None and not (isinstance(asked, Mapping) and asked.get("type") == "text")


def _refuse(problems: Iterator[str], parameter: str) -> None:
    if problem := next(problems, None):
        raise Problem(Kind.REFUSED, problem, parameter)


def _uncallable(tools: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield which tools of the Messages protocol have no schema, as a provider's models know them without."""
    for tool in tools:
        if tool.get("type") not in (None, "custom") and "input_schema" not in tool:
            yield f"a tool of type {tool['type']} is not supported: the policy calls tools with an input_schema"


def _name_of_conversation(protocol: Protocol) -> str:
    return "input" if protocol is Protocol.RESPONSES else "messages"


def _conversation(
    messages: Iterable[Mapping[str, Any]], protocol: Protocol, begins_with_system: bool, system_later: bool
) -> list[Mapping[str, Any]]:
    """Return the messages of a conversation as vLLM gets them.

    Raises:
        Problem: one of them holds something else than text.
    """
    read = list[Mapping[str, Any]]()
    for place, given in enumerate(messages):
        message = with_quotes_as_text(given) if protocol is Protocol.MESSAGES else given
        _refuse(unread(message), _name_of_conversation(protocol))
        is_later = (place or begins_with_system) and not system_later and "role" in message and role_of(message) == "system"
        read.append({**as_read(message, protocol), **({"role": "user"} if is_later else {})})
    return read


def _check_end(messages: Sequence[Mapping[str, Any]], name: str) -> None:
    """Refuse a conversation whose last message is the beginning of the policy's own turn."""
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" or last.get("type") in _OF_POLICY:
        text = (
            "a conversation that ends with a message of the assistant is not supported: a turn is what the policy samples, whole"
        )
        raise Problem(Kind.REFUSED, text, name)
