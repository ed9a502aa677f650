"""Plays an environment in many ways without a model, and finds what would hurt a run.

Alone and twice, to see whether it is deterministic; a hundred at once, to see whether episodes share state, block the event loop
or leave things behind; with hostile calls; and with episodes that end in the middle.
"""

import asyncio
import math
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import psutil

from asyncrl.authoring.calls import hostile_calls, made_call
from asyncrl.authoring.findings import Findings
from asyncrl.authoring.loop_watch import LoopWatch
from asyncrl.authoring.scripted_episode import Played, Script, answering, calling, play, saying
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.messages import CallOutcome, CallRecord, MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.plug_ins.error_counts import CountedError, merged
from asyncrl.core.task import Task
from asyncrl.core.text import pluralize, short, without_middle
from asyncrl.envs.base import Action, Environment
from asyncrl.envs.hosting.hosted import HostedEnvironment
from asyncrl.generators.episode import EpisodeLimits, checked_reset, checked_step

AT_ONCE = 100
"""Episodes at once."""
FEW = 10
"""Episodes at once of a slow environment in another process, of which a hundred would take longer than ``CROWD_S``."""
TURNS = 3
"""Calls in an episode, before its answer."""
COMPARED = 6
"""Tasks whose episodes are compared."""
AGAIN = 6
"""How often a task is played again alone that played differently beside others, to tell chance from shared state."""
ALONE_S = 30.0
"""Seconds after which no further tasks are played alone."""
CROWD_S = 60.0
"""Seconds that episodes at once may take in another process, or calls of theirs that block the event loop."""
ENDED_S = 1.0
"""Seconds in which a cancelled episode must end."""
SHOWN_CHARACTERS, SHOWN_BEFORE = 300, 40
"""Characters that are quoted of answers and errors; and how many of them stand before the place where two answers differ."""

Make = Callable[[Task], Environment]


class EpisodeFigures(msgspec.Struct, frozen=True):
    """What the episodes measured.

    Attributes:
        episodes: how many were played at once.
        steps_per_s: steps of these, a second.
        reset_p50_ms, step_p50_ms, step_p99_ms: their resets and steps, in milliseconds.
        rewards: the different rewards seen, at most ten.
    """

    episodes: int
    steps_per_s: float
    reset_p50_ms: float
    step_p50_ms: float
    step_p99_ms: float
    rewards: tuple[float, ...]


class EpisodeChecks:
    """The checks of one environment, to be run in the event loop where its environments are open.

    Args:
        name: what findings call the environment.
        make: makes the environment of a task's episode.
        watch: sees what blocks the event loop.
        begin: told what is played next.
        elsewhere: whether the environment runs in another process, whose event loop and open files are not seen from here.
    """

    def __init__(
        self,
        name: str,
        make: Make,
        tasks: Sequence[Task],
        limits: EpisodeLimits,
        findings: Findings,
        watch: LoopWatch,
        begin: Callable[[str], None],
        *,
        elsewhere: bool,
    ) -> None:
        self._name, self._make, self._tasks, self._limits, self._findings = name, make, tasks, limits, findings
        self._watch, self._begin, self._elsewhere = watch, begin, elsewhere
        self._rewards: set[float] = set()
        self._made_calls: list[CallRecord] = []
        self._errors: list[CountedError] = []
        self._at = "the first episode"

    async def run(self) -> EpisodeFigures | None:
        """Play everything; None if not even one episode could be played."""
        self._now("an episode with an empty answer")
        first = await self._play(self._tasks[0], answering(""), "episodes")
        if first is None:
            return None
        alone = await self._compared()
        if self._blocks_for_long():
            self._check_blocking(f"; {AT_ONCE} episodes at once would take minutes, and are played when this is mended")
            return None
        figures = await self._crowd(alone)
        await self._hostile(first.tools)
        await self._cancelled(first.tools)
        self._check_made_calls(first.tools)
        self._check_errors(first.tools)
        self._check_rewards()
        self._check_blocking()
        return figures and msgspec.structs.replace(figures, rewards=tuple(sorted(self._rewards)[:10]))

    def _now(self, at: str) -> None:
        self._at = at
        self._begin(at)

    async def _play(self, task: Task, script: Script, check: str) -> Played | None:
        try:
            played = await play(self._make, task, script, self._limits)
        except AsyncRLError as error:
            self._findings.error(
                check, self._name, f"while playing {self._at}: {error}", "correct it: such episodes get no reward"
            )
            return None
        self._rewards |= set(played.rewards[-1:])
        self._made_calls += played.calls
        self._errors += (CountedError(**msgspec.structs.asdict(each)) for each in played.errors)
        return played

    async def _compared(self) -> dict[str, Played]:
        """Play tasks twice, one after the other, and compare; returns those to compare with, none if chance plays a part."""
        alone: dict[str, Played] = {}
        began = time.monotonic()
        for task in self._tasks[:COMPARED]:
            if self._blocks_for_long() or time.monotonic() - began > ALONE_S:
                return alone
            self._now(f"task {short(task.id)} alone")
            twice = [await self._play(task, self._script(task), "episodes") for _ in range(2)]
            one, other = twice
            if one is None or other is None:
                return alone
            if one.late or other.late:
                self._told_late([one, other], "while it was played alone")
                return alone
            if one.seen != other.seen:
                self._not_deterministic(task, one, other)
                return {}
            alone[task.id] = one
        return alone

    def _blocks_for_long(self) -> bool:
        """Whether episodes at once would take minutes, because their calls keep each other from running."""
        return AT_ONCE * TURNS * max(self._watch.blocked.values(), default=0.0) > CROWD_S

    def _not_deterministic(self, task: Task, one: Played, other: Played) -> None:
        remedy = "take chance from random.Random of the task's id or data, and no time or memory addresses into texts"
        problem = f"the same turns of task {short(task.id)} give something else another time: {_difference(one, other)}"
        self._findings.error("determinism", self._name, problem, remedy)

    def _told_late(self, played: Sequence[Played], when: str) -> None:
        """Tell which tools missed their deadlines: what their calls were answered with is then chance, and nobody's state."""
        for name, calls in Counter(name for each in played for name in each.late).items():
            problem = f"{pluralize(calls, 'call')} passed the deadline {when}"
            remedy = "make the tool faster, with many calls at once too, or give it longer: environment.tool_timeout_s"
            self._findings.warning("deadlines", f"{self._name}, tool {name}", problem, remedy)

    def _script(self, task: Task) -> Script:
        calls = min(TURNS, self._limits.max_turns - 1)  # it answers in the last turn
        return calling(calls, str(task.data.get("answer", "")), task.id)

    async def _crowd(self, alone: dict[str, Played]) -> EpisodeFigures | None:
        """Play many episodes at once: a hundred, unless they run in another process and would take long there."""
        if not self._elsewhere:
            return await self._at_once(AT_ONCE, alone)
        began = time.monotonic()
        few = await self._at_once(FEW, alone)
        seconds = time.monotonic() - began
        if few is None or seconds * AT_ONCE / FEW <= CROWD_S:
            return few and await self._at_once(AT_ONCE, alone)
        problem = f"{FEW} episodes at once took {seconds:.0f} s, so {AT_ONCE} were not played"
        remedy = "serve it with more processor cores, or at several `environment.urls`, or a run will wait for it"
        self._findings.warning("episodes", self._name, problem, remedy)
        return few

    async def _at_once(self, count: int, alone: dict[str, Played]) -> EpisodeFigures | None:
        """Play episodes at once, and see whether they are as when they are alone, and what they leave behind."""
        self._now(f"{count} episodes at once")
        tasks = [self._tasks[index % min(len(self._tasks), count)] for index in range(count)]
        before = _Held.now()
        began = time.perf_counter()
        crowd = await asyncio.gather(*(self._play(task, self._script(task), "episodes") for task in tasks))
        seconds = time.perf_counter() - began
        played = [each for each in crowd if each is not None]
        if len(played) < len(crowd):
            return None
        self._told_late(played, f"while {count} episodes were played at once")
        await self._compare(tasks, played, alone)
        await asyncio.sleep(0.2)  # what is being closed may need a moment
        for what, more in before.grown(count // 2):
            remedy = "release in close() what reset() and the tools open; close() is called once for each episode"
            self._findings.error("close", self._name, f"{count} closed episodes left {more} {what} behind", remedy)
        steps = [one for each in played for one in each.step_s] or [0.0]
        return EpisodeFigures(
            episodes=len(played),
            steps_per_s=len(steps) / seconds,
            reset_p50_ms=statistics.median(each.reset_s for each in played) * 1e3,
            step_p50_ms=statistics.median(steps) * 1e3,
            step_p99_ms=sorted(steps)[math.ceil(0.99 * len(steps)) - 1] * 1e3,
            rewards=(),
        )

    async def _compare(self, tasks: Sequence[Task], played: Sequence[Played], alone: dict[str, Played]) -> None:
        """See whether episodes at once were as when they were alone."""
        for task, each in zip(tasks, played, strict=True):
            lonely = alone.get(task.id)
            if lonely is not None and not each.late and lonely.seen != each.seen:
                if await self._differs_alone(task, lonely):
                    return
                problem = f"task {short(task.id)} plays differently beside {len(tasks) - 1} others: {_difference(lonely, each)}"
                remedy = "keep the state of an episode in `self`, set in reset(), and none on the class or in the module"
                self._findings.error("shared state", self._name, problem, remedy)
                return

    async def _differs_alone(self, task: Task, lonely: Played) -> bool:
        """Whether a task also plays differently when it is alone, so that chance is to blame."""
        self._now(f"task {short(task.id)} alone again")
        for _ in range(AGAIN):
            again = await self._play(task, self._script(task), "episodes")
            if again is not None and not again.late and again.seen != lonely.seen:
                self._not_deterministic(task, lonely, again)
                return True
        return False

    async def _hostile(self, tools: Sequence[ToolSpec]) -> None:
        """Make calls that no tool expects, each in an episode of its own."""
        for tool in tools:
            ended = [self._call(call) for call in hostile_calls(tool)]
            self._now(f"{len(ended)} hostile calls of tool {tool.name}")
            problems = [problem for problem in await asyncio.gather(*ended) if problem]
            for problem in problems[:1]:
                remedy = "check arguments in the tool and raise ToolError; only reset() and reward() may break an episode"
                self._findings.error("hostile calls", f"{self._name}, tool {tool.name}", problem, remedy)
        for answer in ("x" * 100_000, "\x00\x1b[2J", "<|im_end|>" * 100, "(" * 5_000):
            self._now(f"the answer {short(answer)}")
            await self._play(self._tasks[0], answering(answer), "hostile calls")

    async def _call(self, call: ToolCall | MalformedCall) -> str:
        """Make one call in an episode of its own; returns what it broke, or nothing."""
        try:
            played = await play(self._make, self._tasks[0], saying(call), self._limits)
        except AsyncRLError as error:
            return f"{short(call)}: {error}"
        text = all(isinstance(each.content, str) for each in played.answers[0]) if played.answers else True
        return "" if text else f"its answer to {short(call)} is not text"

    async def _cancelled(self, tools: Sequence[ToolSpec]) -> None:
        """Cancel each tool just after it was called."""
        for tool in tools:
            self._now(f"cancelling tool {tool.name}")
            task = self._tasks[0]
            try:
                environment = HostedEnvironment(self._make(task), task)
                try:
                    await environment.ready()
                    await checked_reset(environment)
                    action = Action("", (made_call(tool, random.Random(tool.name)),))
                    step = asyncio.ensure_future(checked_step(environment, action))
                    await asyncio.wait({step}, timeout=0.02)
                    if step.done() and not step.exception():
                        self._made_calls += step.result().calls
                    began = time.monotonic()
                    step.cancel()
                    await asyncio.wait({step})
                    late = time.monotonic() - began
                    if not step.cancelled() and step.exception() is not None:
                        raise step.exception() or RuntimeError
                finally:
                    await environment.close(self._limits.close_timeout_s)
            except AsyncRLError as error:
                remedy = "let asyncio.CancelledError through, and do not count on what a cancelled tool has not done"
                self._findings.error("cancellation", f"{self._name}, tool {tool.name}", f"{error}", remedy)
                continue
            if late > ENDED_S:
                problem = f"it goes on for {late:.1f} s after its episode was cancelled"
                remedy = "let asyncio.CancelledError through: catch `Exception`, never everything"
                self._findings.error("cancellation", f"{self._name}, tool {tool.name}", problem, remedy)

    def _check_made_calls(self, tools: Sequence[ToolSpec]) -> None:
        """Tell which tools gave no result: no call that was made up fitted their parameters, or all raised errors."""
        example = "give an example of the parameter: Annotated[str, msgspec.Meta(examples=[...])]"
        errors = {error.method: error for error in merged(self._errors)}
        for tool in tools:
            calls = [call for call in self._made_calls if call.tool == tool.name]
            outcomes, many, remedy = {call.outcome for call in calls}, pluralize(len(calls), "call"), example
            if outcomes == {CallOutcome.MALFORMED}:
                why = calls[0].problem.partition("; use ")[0]
                problem = f"none of {many} made up for it fits, so it was not tried: {why}"
            elif tool.name in errors and outcomes <= {CallOutcome.MALFORMED, CallOutcome.ERROR}:
                problem = (
                    f"none of {many} made up for it had a result: {without_middle(str(errors[tool.name]), SHOWN_CHARACTERS)}"
                )
                remedy = f"correct the tool; if it is what it was called with that is wrong, {example}"
            else:
                continue
            self._findings.warning("made-up calls", f"{self._name}, tool {tool.name}", problem, remedy)

    def _check_errors(self, tools: Sequence[ToolSpec]) -> None:
        """Tell what the environment's code raised that neither broke an episode nor was a tool's."""
        for error in merged(self._errors):
            if error.method not in {tool.name for tool in tools}:
                self._findings.warning("errors", self._name, str(error), "correct it: until then it counts as nothing, or as 0")

    def _check_rewards(self) -> None:
        if len(self._rewards) == 1:
            (only,) = self._rewards
            known = any("answer" in task.data for task in self._tasks[:COMPARED])
            answers = "empty, expected (`data['answer']`) or long" if known else "empty or long"
            remedy = "see that reward() compares with what the task expects"
            if known:
                self._findings.error("rewards", self._name, f"every answer, {answers}, is rewarded with {only:g}", remedy)
            else:
                remedy += "; put the expected answer into data['answer'], and this check can try it"
                self._findings.warning("rewards", self._name, f"every answer, {answers}, is rewarded with {only:g}", remedy)

    def _check_blocking(self, added: str = "") -> None:
        """Tell what blocked the event loop; ``added`` ends each remedy."""
        for place, seconds in self._watch.blocked.items():
            problem = f"it keeps the event loop of all episodes from running for {seconds * 1e3:.0f} ms at a time"
            self._findings.error("blocking", str(place), problem, place.remedy + added)


class _Held(msgspec.Struct, frozen=True):
    """What a process holds: open files and sockets, threads, child processes, asyncio tasks."""

    files: int
    threads: int
    children: int
    tasks: int

    @classmethod
    def now(cls) -> "_Held":
        process = psutil.Process()
        return cls(process.num_fds(), threading.active_count(), len(process.children(recursive=True)), len(asyncio.all_tasks()))

    def grown(self, by: int) -> list[tuple[str, int]]:
        """Say what there is more of now than then, by at least ``by``."""
        now = _Held.now()
        names = {"files": "open files or sockets", "threads": "threads", "children": "processes", "tasks": "asyncio tasks"}
        more = {name: getattr(now, name) - getattr(self, name) for name in names}
        return [(names[name], count) for name, count in more.items() if count >= by]


def _difference(one: Played, other: Played) -> str:
    if one.prompt != other.prompt:
        return "the prompt is {}, then {}".format(*_where_they_differ(one.prompt, other.prompt))
    for number, (first, second) in enumerate(zip(one.answers, other.answers, strict=False)):
        if first != second:
            return f"turn {number} is answered with " + ", then ".join(_where_they_differ(first, second))
    if one.rewards != other.rewards:
        return f"the rewards are {short(one.rewards)}, then {short(other.rewards)}"
    return f"it ends after {len(one.answers)} turns, then after {len(other.answers)}"


def _where_they_differ(one: Sequence[Message], other: Sequence[Message]) -> tuple[str, str]:
    """Quote both where they begin to differ."""
    first, second = ("\n".join(map(_text, messages)) for messages in (one, other))
    if first == second:  # what differs is no text, such as a role
        first, second = repr(one), repr(other)
    pairs = enumerate(zip(first, second, strict=False))
    begin = max(0, next((place for place, (a, b) in pairs if a != b), min(len(first), len(second))) - SHOWN_BEFORE)
    shown = slice(begin, begin + SHOWN_CHARACTERS)
    return f"{'...' if begin else ''}{first[shown]!r}", f"{'...' if begin else ''}{second[shown]!r}"


def _text(message: Message) -> str:
    return message.content if isinstance(message.content, str) else repr(message)
