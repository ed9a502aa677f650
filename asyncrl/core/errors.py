"""The errors a user can see, each of which names the thing, the value seen and the remedy; and the first of several."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from asyncrl.core.plug_ins.users_error import RaisedOnPurpose, UsersError, lines_in_notebook
from asyncrl.core.text import as_the_program_names, writable


class AsyncRLError(RaisedOnPurpose):
    """Base of every error this project raises on purpose. Its text can always be written and sent, even if it quotes user code.

    A subclass with its own constructor keeps the constructor's arguments as attributes, in their order, because the error is
    sent to other processes as these.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(writable(as_the_program_names(each)) if isinstance(each, str) else each for each in arguments))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """Return the class and its constructor's arguments, as which the error is sent."""
        return type(self), tuple(value for name, value in vars(self).items() if name != "__notes__") or self.args

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows. IPython calls this; it would show pages of our code, and before 9 no notes."""
        return lines_in_notebook(self)


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to stop while no run was under way; the text says which signal."""


class RecipeError(AsyncRLError):
    """A recipe was refused before anything started.

    Args:
        place: dotted path of the offending key, e.g. ``learner.lr``.
        problem: what is wrong, with the value seen.
    """

    def __init__(self, place: str, problem: str, remedy: str) -> None:
        self.place, self.problem, self.remedy = place, problem, remedy
        super().__init__(f"{place}: {problem}; {remedy}" if place else f"{problem}; {remedy}")


class DeadlineExceeded(AsyncRLError):
    """A wait passed its deadline.

    Args:
        waiter: who waited, e.g. ``train pump``.
        owner: who was waited for, e.g. ``buffer.take``.
    """

    def __init__(self, waiter: str, owner: str, seconds: float, remedy: str) -> None:
        self.waiter, self.owner, self.seconds, self.remedy = waiter, owner, seconds, remedy
        super().__init__(f"{waiter} waited {seconds:g} s for {owner}; {remedy}")


class LedgerError(AsyncRLError):
    """The exactly-once accounting does not add up, or an operation was applied to a group in the wrong state."""


class WeightMismatch(AsyncRLError):
    """The weights an engine loaded are not the weights the learner published."""


class EnvironmentBroken(AsyncRLError):
    """An environment raised an error where it must not: the attempt fails, and no reward is recorded.

    Args:
        raised: the error of the user's code and its place; None if it is not known or no code raised.
    """

    def __init__(self, problem: str, raised: UsersError | None = None) -> None:
        self.problem, self.raised = problem, raised
        super().__init__(problem)


class EnvironmentLost(AsyncRLError):
    """What an environment stands on, such as its server, is gone through no fault of the task.

    The episode is issued again: it has no reward, and nothing counts against its task.

    Args:
        incident: names the event, differently from all others. All episodes that one event takes count as one failure; those
            that began after it was told of count again.
    """

    def __init__(self, problem: str, incident: str) -> None:
        self.problem, self.incident = problem, incident
        super().__init__(problem)


class PromptTooLong(AsyncRLError):
    """A task's prompt leaves no room for a turn. The task is left out for the rest of the run, and nothing counts as a failure.

    Args:
        tokens: tokens of the prompt, with its tools.
        most: what ``model.max_context`` is.
    """

    def __init__(self, task: str, tokens: int, most: int) -> None:
        self.task, self.tokens, self.most = task, tokens, most
        super().__init__(f"task {task}: its prompt has {tokens:,} tokens, and model.max_context is {most:,}: no turn fits")


class ComponentFailed(AsyncRLError):
    """A component of the run (generator, learner, buffer) died; the run ends with this as its reason."""


class RankLost(ComponentFailed):
    """A learner rank has lost its connection to another one, which has probably died."""


class ProcessDied(ComponentFailed):
    """A process is gone, killed by the system or by a bug below our code; a replacement may do its work."""


class ProcessUnreachable(ProcessDied):
    """A call did not reach a process, or its answer did not come back; the process may live, and another call may reach it."""


class NodeLost(ProcessDied):
    """A process is gone, or out of reach, together with its node: it did not fail itself."""


class NodeFull(ProcessDied):
    """A generator cannot go on because its node's memory file system has no room for the weights.

    Args:
        needed: bytes that would have to be free there.
    """

    def __init__(self, problem: str, needed: int) -> None:
        self.problem, self.needed = problem, needed
        super().__init__(problem)


class WeightsOutOfReach(ProcessDied):
    """A generator cannot go on because new weights do not come to its node in the way that the recipe names.

    Args:
        node: Ray's id of that node; empty where it is known to whoever hears of it.
    """

    def __init__(self, problem: str, node: str = "") -> None:
        self.node = node
        super().__init__(problem)


class EnvironmentUnreachable(ComponentFailed):
    """Nothing that a new episode's environment could stand on came back in time; the text says what was waited for."""


class HandedBack(ProcessDied):
    """A generator's process was told to end, and has handed its episodes back: nothing failed."""


class EventLoopBlocked(ProcessDied):
    """A generator's event loop was blocked until its leases lapsed; the text names the blocking code, or the log to read."""


class BudgetExceeded(AsyncRLError):
    """More failures of one kind than the recipe allows."""


class FailureKind(StrEnum):
    """Why an attempt at a task failed. A bad answer of the model is not a failure: it gets a low reward."""

    INFRASTRUCTURE = "infrastructure"
    """An engine, host or environment server failed; the task is issued again and nothing counts against it."""
    DATA = "data"
    """This task breaks its environment; after ``max_attempts`` it is filtered and named."""

    @property
    def description(self) -> str:
        """What failed, in the words that a user reads."""
        return "broken environment or score" if self is FailureKind.DATA else "lost engine, host or service"


class ScoringFailed(AsyncRLError):
    """A finished episode got no reward, so the attempt fails: no reward is made up.

    Args:
        kind: infrastructure, e.g. a service is down; or data, e.g. the model cannot score this episode.
        reason: who failed, how, and what to do.
    """

    def __init__(self, kind: FailureKind, reason: str) -> None:
        self.kind, self.reason = kind, reason
        super().__init__(reason)


@contextmanager
def first_error() -> Iterator[None]:
    """If the enclosed code raises an exception group, raise its first error instead: the others follow from it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        alone = True
        while isinstance(error, BaseExceptionGroup):
            alone = alone and len(error.exceptions) == 1
            error = error.exceptions[0]
        led_to_it = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        raise error from (led_to_it if alone else group)
