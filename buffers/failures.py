"""How many failures of each kind a run has had, and when they are too many."""

from asyncrl.buffers.group import Group
from asyncrl.buffers.state import BufferState
from asyncrl.core.errors import BudgetExceeded, FailureKind
from asyncrl.core.task import Task

NOTHING_SAMPLED = "the policy sampled no token at all; does the prompt fit into the context?"
NO_ANSWER_IN_TIME = (
    "environment.episode_timeout_s was over before the policy's first answer; the engine is overloaded or frozen, or the "
    "environment's reset is slow"
)


class Failures:
    """The failures since the run was started or resumed. Only this class changes the parts of ``state`` that count them."""

    def __init__(self, state: BufferState) -> None:
        self._state = state

    def counts(self, incident: str, group: Group) -> bool:
        """Whether a failure of ``group`` by ``incident`` counts; if so, those of all groups that run now do not any more."""
        if not incident:
            return True
        counted = self._state.incident_leases  # there are at most max_failures of them
        if group.leased <= counted.get(incident, -1):
            return False
        counted[incident] = self._state.leases
        return True

    def spend(self, kind: FailureKind, what: str) -> None:
        """Count a failure.

        Raises:
            BudgetExceeded: there were more than ``max_failures`` of this kind.
        """
        failures, most = self._state.failures, self._state.limits.max_failures
        failures[kind] += 1
        if failures[kind] > most:
            raise BudgetExceeded(
                f"{failures[kind]} failures ({kind.description}), more than buffer.max_failures={most}; the last one: {what}"
            )

    def begin_again(self) -> None:
        """Count from 0 again."""
        self._state.failures = dict.fromkeys(FailureKind, 0)
        self._state.incident_leases = {}


def of_task(task: Task, reason: str) -> str:
    """Name the task before the reason, unless the reason does."""
    name = f"task {task.id}: "
    return reason if reason.startswith(name) else name + reason
