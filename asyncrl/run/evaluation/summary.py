"""The result of an evaluation of models, written to ``evaluation.json`` for programs.

:mod:`asyncrl.run.evaluation.view` shows it to people.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from asyncrl.core.ids import PolicyVersion, TaskId
from asyncrl.core.trajectory import StopReason
from asyncrl.generators.evaluation import BrokenEpisode, EvaluationResult
from asyncrl.run.measures.intervals import Estimate
from asyncrl.run.measures.scores import Scores, difference, score
from asyncrl.run.measures.summary import RecordedSummary


class ModelScores(msgspec.Struct, frozen=True, kw_only=True):
    """How one model did.

    Attributes:
        model: its name.
        path: the folder of the model, or of the checkpoint that it is.
        version: the policy version of its run, where it is one's and known.
        folder: the folder with its logs and, in ``trajectories``, its episodes.
        scores: the scores of all tasks together.
        sources: the scores by task source.
        difference: its mean@k less that of the first model, over the tasks that both played; None for the first.
        missing: episodes that have no reward because they broke their environment; they are in no score.
        missing_tasks: tasks all of whose episodes are missing.
        attempts: how often an episode was tried before it counted as missing, so errors of its code may be counted as often.
        example: what broke the first of the missing episodes; empty if none is missing.
        turns: turns of the model in an episode, on average.
        stopped: the shares of episodes that ended for each reason.
        seconds: how long it played, starting the engines not included.
    """

    model: str
    path: str
    version: PolicyVersion | None
    folder: str
    scores: Scores
    sources: dict[str, Scores]
    difference: Estimate | None
    missing: int
    missing_tasks: int
    attempts: int
    example: str
    turns: float
    stopped: dict[StopReason, float]
    seconds: float


class EvaluationSummary(RecordedSummary, frozen=True, kw_only=True):
    """How an evaluation ended.

    Attributes:
        recipe: name of the recipe.
        environment: name of the environment.
        samples: the k of mean@k: episodes of each task.
        temperature: what tokens were sampled with.
        passing_reward: the least reward of an episode that passed.
        models: the models that were evaluated to the end, in the order in which they were named.
    """

    recipe: str
    environment: str
    samples: int
    temperature: float
    passing_reward: float
    models: tuple[ModelScores, ...] = ()


class Played(msgspec.Struct, frozen=True):
    """What one model played.

    Attributes:
        results: the results of all episodes that have one.
        broken: the episodes that have none.
        seconds: how long it took.
    """

    results: Sequence[EvaluationResult]
    broken: Sequence[BrokenEpisode]
    seconds: float

    def rewards(self, tasks: Sequence[TaskId]) -> list[list[float]]:
        """Return the rewards of the episodes of each task; none for a task whose episodes are all missing."""
        by_task: dict[TaskId, list[float]] = {task: [] for task in tasks}
        for result in self.results:
            if result.task_id in by_task:
                by_task[result.task_id].append(result.reward)
        return list(by_task.values())

    def stopped(self) -> dict[StopReason, float]:
        """Return the share of episodes that ended for each reason, of the reasons that there were."""
        reasons = [result.stop_reason for result in self.results]
        return {reason: reasons.count(reason) / len(reasons) for reason in StopReason if reason in reasons}

    def turns(self) -> float:
        """Return the mean number of turns of an episode."""
        return fmean(result.turns for result in self.results)


def scores_by_source(
    played: Played, sources: Mapping[str, Sequence[TaskId]], samples: int, passing: float
) -> tuple[Scores, dict[str, Scores]]:
    """Score all tasks together, and those of each source that has an episode."""
    rewards = {source: played.rewards(tasks) for source, tasks in sources.items()}
    all_together = [own for of_source in rewards.values() for own in of_source]
    by_source = {source: score(own, samples, passing) for source, own in rewards.items() if any(own)}
    return score(all_together, samples, passing), by_source


def difference_to(first: Played, played: Played, sources: Mapping[str, Sequence[TaskId]], passing: float) -> Estimate | None:
    """Return the difference of ``played`` to the first model, over all tasks that both played."""
    tasks = [task for of_source in sources.values() for task in of_source]
    return difference(played.rewards(tasks), first.rewards(tasks), passing)
