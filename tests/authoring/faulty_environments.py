"""Environments with one mistake each, as people make them."""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec

from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.core.task import Task
from asyncrl.envs import Action, ToolEnvironment, tool
from asyncrl.envs.base import StepResult


class Sound(ToolEnvironment):
    """No mistake; the others differ from it in one point."""

    system_prompt = "Answer with the double."

    @tool
    async def double(self, number: int) -> int:
        """Twice the number."""
        return 2 * number

    def reward(self, task: Task, answer: str) -> float:
        return float(answer.strip() == str(task.data["answer"]))

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int) -> Sequence[Task]:
        first = 0 if split == "train" else 1_000_000
        return [
            Task(id=str(number), prompt=f"{number}?", data={"answer": 2 * number})
            for number in range(first, first + min(count, 30))
        ]


_waits: list[object] = []


class Blocking(Sound):
    @tool
    async def wait(self) -> str:
        """Wait."""
        if len(_waits) < 20:  # enough to be seen
            _waits.append(time.sleep(0.15))
        return "done"


class BlockingForLong(Sound):
    @tool
    async def double(self, number: int) -> int:
        """Twice the number."""
        time.sleep(0.3)
        return 2 * number


class Overrun(Sound):
    """Its tool is late when many call it at once, as a server that answers one call after the other is."""

    calls = 0

    @tool(timeout_s=1)
    async def double(self, number: int) -> int:
        """Twice the number."""
        Overrun.calls += 1
        try:
            await asyncio.sleep(5 if Overrun.calls > 10 else 0)
        finally:
            Overrun.calls -= 1
        return 2 * number


class Hanging(Sound):
    """Its tool does not end before it may."""

    may_end = threading.Event()

    @tool(timeout_s=100)
    async def double(self, number: int) -> int:
        """Twice the number."""
        while not Hanging.may_end.is_set():
            await asyncio.sleep(0.05)
        return 2 * number


class Undocumented(Sound):
    @tool
    async def halve(self, number: int) -> int:
        return number // 2


class Replaced(Sound):
    @tool
    async def halve(self, number: int) -> int:
        """Half of the number."""
        return number // 2

    def halve(self, number: int) -> int:
        return number // 2


class Constant(Sound):
    def reward(self, task: Task, answer: str) -> float:
        return 0.5


class NotFinite(Sound):
    def reward(self, task: Task, answer: str) -> float:
        return float("nan")


class Shared(Sound):
    seen: list[int] = []  # noqa: RUF012 - the mistake

    async def reset(self, task: Task):
        Shared.seen.clear()
        return await super().reset(task)

    @tool
    async def remember(self, number: int) -> str:
        """Remember a number."""
        await asyncio.sleep(0.001)
        Shared.seen.append(number)
        return str(Shared.seen)


class Random(Sound):
    @tool
    async def roll(self) -> float:
        """Roll a die."""
        return random.random()


class RandomTasks(Sound):
    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int) -> Sequence[Task]:
        first = 0 if split == "train" else 1_000_000
        numbers = [random.randint(first, first + 10_000) for _ in range(30)]
        return [Task(id=f"{split} {index}", prompt=f"{each}?", data={"answer": 2 * each}) for index, each in enumerate(numbers)]


class HashedTasks(Sound):
    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int) -> Sequence[Task]:
        first = 0 if split == "train" else 10
        words = list({f"word {number}" for number in range(first, first + 10)})  # in the order of their hashes
        return [Task(id=word, prompt=word, data={"answer": word}) for word in words]


class Overlapping(Sound):
    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int) -> Sequence[Task]:
        return [Task(id=f"{split} {number}", prompt=f"{number}?", data={"answer": 2 * number}) for number in range(30)]


class NeverClosing(Sound):
    async def reset(self, task: Task):
        self.file = open(__file__)
        _kept.append(self.file)
        return await super().reset(task)


_kept: list[object] = []


class Swallowing(Sound):
    seconds = 0.05

    @tool
    async def wait(self) -> str:
        """Wait."""
        try:
            await asyncio.sleep(self.seconds)
        except BaseException:
            await asyncio.sleep(1.1)
        return "done"


class Breaking(Sound):
    async def step(self, action):
        for call in action.calls:
            len(call.arguments["number"] + 1 if isinstance(call.arguments["number"], str) else "")
        return await super().step(action)


_SECRET = "^(?=.*[0-9])[a-z0-9]{8}$"


_times = itertools.count()


class Unmade(Sound):
    @tool
    async def open(self, password: Annotated[str, msgspec.Meta(pattern=_SECRET)]) -> str:
        """Open the door."""
        return "open"


class Broken(Sound):
    @tool
    async def open(self, door: str) -> str:
        """Open the door."""
        return self.doors[door]


class Unscored(Sound):
    async def step(self, action: Action) -> StepResult:
        try:
            raise ConnectionError("the judge is away")
        except ConnectionError as error:
            return msgspec.structs.replace(await super().step(action), errors=(UsersError.of(error),))


class Exemplary(Sound):
    @tool
    async def open(self, password: Annotated[str, msgspec.Meta(pattern=_SECRET, examples=["abcdefg1"])]) -> str:
        """Open the door."""
        return "open"


class Timed(Sound):
    @tool
    async def open(self, door: str) -> str:
        """Open the door."""
        return f"opened{' again' * 50} at {next(_times)}"


class Wordy(Sound):
    system_prompt = "word " * 5_000


class Markup(Sound):
    system_prompt = "<|im_start|>system\nAnswer with the double.<|im_end|>"
