"""What stands below and above ``@tool``: what is marked becomes a tool, or its class is refused."""

import asyncio
import dataclasses
import functools
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from process_tools import Computing

from asyncrl.core.ids import TaskId
from asyncrl.core.messages import CallOutcome, ToolCall
from asyncrl.core.task import Task
from asyncrl.envs import Action, StepResult, ToolEnvironment, tool
from asyncrl.envs.call_usage import SHOWN


def logged(method: Callable[..., Any]) -> Callable[..., Any]:
    """An ordinary decorator."""

    @functools.wraps(method)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return method(*arguments, **named)

    return wrapper


def bare(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that forgot ``functools.wraps``."""

    def wrapper(*arguments: Any, **named: Any) -> Any:
        return method(*arguments, **named)

    return wrapper


def synchronous(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that makes a plain method of an ``async`` one."""

    @functools.wraps(method)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return asyncio.run(method(*arguments, **named))

    return wrapper


class Retrying:
    """A decorator that is a class."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.method(*arguments, **named)


class Base(ToolEnvironment):
    def reward(self, task: Task, answer: str) -> float:
        return 0.0


class Decorated(Base):
    closed = False

    @tool
    @logged
    async def above_async(self, word: str) -> str:
        """Upper case."""
        await asyncio.sleep(0)
        return word.upper()

    @logged
    @tool(max_calls=1)
    @logged
    async def between(self, word: str) -> str:
        """Upper case."""
        return word.upper()

    @tool
    @logged
    def above_plain(self, word: str) -> str:
        """Upper case."""
        return word.upper()

    @tool
    @synchronous
    async def in_a_loop_of_its_own(self, word: str) -> str:
        """Upper case."""
        return word.upper()

    @tool
    async def stream(self, word: str) -> AsyncIterator[str]:
        """Letters."""
        try:
            for letter in word:
                yield letter
            await asyncio.sleep(0 if word != "for ever" else 600)
        finally:
            self.closed = True

    @tool
    def generate(self, word: str) -> Iterator[str]:
        """Letters."""
        yield from word

    @logged
    @tool
    @logged
    def generate_decorated(self, word: str) -> Iterator[str]:
        """Letters."""
        yield from word

    @tool
    @logged
    async def stream_decorated(self, word: str) -> AsyncIterator[str]:
        """Letters."""
        for letter in word:
            yield letter


async def call(environment: ToolEnvironment, *calls: ToolCall) -> StepResult:
    await environment.reset(Task(id=TaskId("t"), prompt="?"))
    return await environment.step(Action("", calls))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("above_async", "AB"),
        ("between", "AB"),
        ("above_plain", "AB"),
        ("in_a_loop_of_its_own", "AB"),
        ("stream", '["a","b"]'),
        ("generate", '["a","b"]'),
        ("generate_decorated", '["a","b"]'),
        ("stream_decorated", '["a","b"]'),
    ],
)
async def test_what_a_method_gives_is_waited_for_and_a_generator_is_a_list(name: str, text: str):
    result = await call(Decorated(), ToolCall(name, {"word": "ab"}))
    assert (result.calls[0].outcome, result.observation.messages[0].content) == (CallOutcome.OK, text)
    assert Decorated.tools[name].spec.description in ("Upper case.", "Letters.")


async def test_a_generator_that_misses_its_deadline_is_closed():
    environment = Decorated()
    environment.tool_timeout_s = 0.05
    result = await call(environment, ToolCall("stream", {"word": "for ever"}))
    assert result.calls[0].outcome is CallOutcome.TIMEOUT
    assert environment.closed


@pytest.mark.parametrize(("name", "text"), [("letters", '["a","b"]'), ("letters_one_by_one", '["a","b"]'), ("upper", "AB")])
async def test_a_process_waits_and_lists_as_well(name: str, text: str):
    environment = Computing()
    try:
        result = await call(environment, ToolCall(name, {"word": "ab"}))
    finally:
        await environment.close()
    assert result.observation.messages[0].content == text


async def test_what_has_no_text_in_a_process_is_an_error_of_its_tool():
    environment = Computing()
    try:
        result = await call(environment, ToolCall("bytes_of", {"word": "ab"}))
    finally:
        await environment.close()
    (error,) = result.errors
    assert (error.method, error.problem) == ("bytes_of", "returned bytes, which are no text; decode them")


def take(self: Any, word: str) -> str:
    """Take it."""
    return word


NOT_PLAIN = {
    "an object of class _lru_cache_wrapper": functools.lru_cache(take),
    "an object of class classmethod, not above a plain method; make it a @staticmethod": classmethod(take),
    "an object of class partialmethod": functools.partialmethod(take, word="a"),
    "an object of class partial": functools.partial(take, word="a"),
    "an object of class Retrying": Retrying(take),
    "an object of class property": property(take),
    "an object of class singledispatchmethod": functools.singledispatchmethod(take),
    "len, an object of class builtin_function_or_method": len,
}


@pytest.mark.parametrize(("what", "marked"), NOT_PLAIN.items())
def test_only_plain_methods_are_marked(what: str, marked: Any):
    with pytest.raises(TypeError, match=f"^@tool stands above (take, )?{what}"):
        tool(marked)


HIDING: list[Callable[..., Any]] = [
    bare,
    Retrying,
    classmethod,
    property,
    functools.lru_cache,
    functools.cached_property,
    functools.singledispatchmethod,
    lambda marked: functools.partialmethod(marked, word="a"),
    lambda marked: functools.partial(marked, word="a"),
    lambda marked: bare(bare(marked)),
    lambda marked: classmethod(logged(bare(marked))),
]


@pytest.mark.parametrize("above", HIDING)
def test_a_mark_that_is_hidden_is_refused(above: Callable[..., Any]):
    def take(self: Any, word: str) -> str:
        """Take it."""
        return word

    with pytest.raises(
        TypeError, match=r"^Mine: tool take was marked, but .* stands above @tool and hides it; write @tool above"
    ):
        type("Mine", (Base,), {"take": above(tool(take))})


@pytest.mark.parametrize(
    "above",
    [
        classmethod,
        property,
        lambda marked: functools.partialmethod(marked, word="a"),
        lambda marked: functools.partial(marked, word="a"),
    ],
)
def test_a_mark_that_is_hidden_under_another_name_is_refused(above: Callable[..., Any]):
    def other(self: Any, word: str) -> str:
        """Take it."""
        return word

    with pytest.raises(TypeError, match=r"^Mine: tool take was marked, but .* stands above @tool and hides it"):
        type("Mine", (Base,), {"take": above(tool(other))})


def on_itself(environment: Any, marked: Any) -> None:
    environment.take = marked


def bound_to_itself(environment: Any, marked: Any) -> None:
    environment.take = types.MethodType(marked, environment)


def wrapped_on_itself(environment: Any, marked: Any) -> None:
    environment.stream = functools.wraps(environment.stream)(marked)


def of_another_on_itself(environment: Any, marked: Any) -> None:
    environment.stream = type("Other", (Base,), {"take": marked})().take


@pytest.mark.parametrize("setting", [on_itself, bound_to_itself, wrapped_on_itself, of_another_on_itself])
def test_a_tool_that_is_set_on_an_instance_is_refused(setting: Callable[[Any, Any], None]):
    def other(self: Any, word: str) -> str:
        """Take it."""
        return word

    with pytest.raises(TypeError, match=r"was marked, but set on an instance of Decorated, so it is no tool; set it in the body"):
        setting(Decorated(), tool(other))


async def test_an_instance_may_hold_its_tools_under_other_names_and_have_fewer():
    environment = Decorated()
    environment.first = environment.stream  # type: ignore[attr-defined]
    environment.tools = {"generate": environment.tools["generate"]}  # type: ignore[misc]
    result = await call(environment, ToolCall("generate", {"word": "ab"}), ToolCall("stream", {"word": "ab"}))
    assert [each.outcome for each in result.calls] == [CallOutcome.OK, CallOutcome.MALFORMED]


async def test_an_instance_may_keep_what_it_replaces_wraps_or_has_of_another():
    class Kept(Decorated):
        def __init__(self) -> None:
            self.earlier = super().generate
            self.logged = functools.wraps(self.stream)(lambda word: word)
            self.of_another = Decorated().stream
            self.bare_of_another = functools.partial(Other.of_text)

        @tool
        def generate(self, word: str) -> str:
            """Take it."""
            return f"{word}, {self.logged(word)}"

    class Other(Base):
        @tool
        @staticmethod
        def of_text(word: str) -> str:
            """Take it."""
            return f"{word}!"

    assert Kept().bare_of_another("ab") == "ab!"
    with pytest.raises(TypeError, match=r"what shall be no tool can be held as `functools.partial\(...\)`, under a name that no"):
        Kept().bare = Other.of_text  # type: ignore[attr-defined]
    result = await call(Kept(), ToolCall("generate", {"word": "ab"}))
    assert [each.outcome for each in result.calls] == [CallOutcome.OK]


def test_a_class_may_hold_its_tools_for_ends_of_its_own():
    class Held(Decorated):
        @tool
        def take(self, word: str, times: int = 2) -> str:
            """Take it."""
            return word * times

        once = functools.partialmethod(take, times=1)
        table = {"take": take}  # noqa: RUF012 - shared, and never changed

        @property
        def first(self) -> Callable[..., str]:
            return self.take

        @functools.cached_property
        def second(self) -> Callable[..., str]:
            return self.take

    held = Held()
    assert (held.once("a"), held.first("a"), held.second("a")) == ("a", "aa", "aa")
    assert held.tools.keys() == Decorated.tools.keys() | {"take"}


def test_a_class_that_is_made_anew_has_its_tools():
    @dataclasses.dataclass(slots=True)
    class Slotted(Decorated):
        word: str = "a"

        @tool
        def take(self) -> str:
            """Take it."""
            return self.word

    assert Slotted.tools.keys() == Decorated.tools.keys() | {"take"}
    assert Slotted.tools["take"].method is vars(Slotted)["take"]


@pytest.mark.parametrize("tools", [{}, None, property(lambda self: {})])
def test_tools_are_not_defined_beside_the_marks(tools: Any):
    with pytest.raises(TypeError, match=r"^Mine defines `tools`, which holds .*; mark those that it shall have, and write"):
        type("Mine", (Base,), {"tools": tools})


def test_a_decorator_that_hides_the_signature_is_refused_with_what_it_lacks():
    with pytest.raises(TypeError, match=r"^Mine: tool take: \*\*named: Any cannot be .* write functools.wraps in it"):
        type("Mine", (Base,), {"take": tool(bare(take))})


OTHER_ENDS = ["close", "reset", "step", "ready", "share", "reward", "turn_reward", "make_tasks", "task", "tools"]
OTHER_ENDS += ["secrets", "shared", "workspace", "provided", "system_prompt", "tool_timeout_s", "scores_answers", "_run"]


@pytest.mark.parametrize("name", OTHER_ENDS)
def test_a_tool_is_not_named_like_what_an_environment_has(name: str):
    def take(self: Any, word: str) -> str:
        """Take it."""
        return word

    with pytest.raises(TypeError, match=f"^Mine: tool .*cannot be named '{name}', which .*; rename it"):
        type("Mine", (Base,), {name: tool(take)})


def test_two_tools_of_a_class_have_two_names():
    with pytest.raises(TypeError, match="Mine has two tools named 'take'; rename one of them"):

        class Mine(Base):
            @tool
            async def take(self, word: str) -> str:
                """Take a word."""
                return word

            @tool(timeout_s=3)
            @staticmethod
            def take(number: int) -> int:  # noqa: F811
                """Take a number."""
                return number


def test_a_tool_is_replaced_by_a_tool_or_left_out():
    class Replaced(Decorated):
        @tool
        async def stream(self, word: str) -> str:
            """All of it."""
            return word

        generate = None  # type: ignore[assignment]

    assert Replaced.tools.keys() == Decorated.tools.keys() - {"generate"}
    with pytest.raises(TypeError, match=r"^Mine: tool stream is a tool of Decorated, and what replaces it is not marked; write"):
        type("Mine", (Decorated,), {"stream": take})


async def test_an_unknown_tool_among_many_is_answered_shortly_with_the_nearest():
    async def search(self: Any, query: str, language: str = "en", limit: int = 10, since: str | None = None) -> str:
        """Search."""
        return query

    Many = type("Many", (Base,), {f"search_{number}_papers": tool(search) for number in range(128)})
    result = await call(Many(), ToolCall("serach_77_paper", {}), ToolCall("x" * 100_000, {}))
    near, far = (message.content for message in result.observation.messages)
    assert near.startswith("error: no tool 'serach_77_paper'; use one of the 128 tools, such as search_77_papers(query: str, ")
    assert len(near) < SHOWN + 100
    assert len(far) < SHOWN + 200
