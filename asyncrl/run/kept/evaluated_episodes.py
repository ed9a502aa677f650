"""Keeps the episodes that one generator plays in evaluations, in the same form as those that are trained."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, partial
from math import ceil
from pathlib import Path

from asyncrl.core.episode import Episode
from asyncrl.core.ids import PolicyVersion, TaskId, WorkerId
from asyncrl.core.recipe.environment import label_of
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.trajectories import AllTrajectoriesConfig, NoTrajectoriesConfig, SampledTrajectoriesConfig
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.episodes.files import evaluation_file
from asyncrl.episodes.schema import Kind
from asyncrl.episodes.writer import Decode, decoder, table, untrained, write

logger = logging.getLogger(__name__)

WAIT_S = 30.0
"""How long an evaluation waits for its file."""


class EvaluatedEpisodes:
    """Writes the episodes of each evaluation that ``worker`` takes part in.

    Args:
        recipe: says which trajectories are kept.
        model_path: folder of the tokenizer that the text is decoded with.
        folder: where the files go.
        worker: whose episodes these are.
    """

    def __init__(self, recipe: Recipe, model_path: Path, folder: Path, worker: WorkerId) -> None:
        self._environment, self._folder, self._worker = partial(label_of, recipe.environment), folder, worker
        match recipe.tracking.trajectories:
            case NoTrajectoriesConfig():
                self._most: int | None = 0
            case SampledTrajectoriesConfig(count=count):
                self._most = ceil(count / recipe.generators.count)
            case AllTrajectoriesConfig():
                self._most = None
        self._shares: Counter[PolicyVersion] = Counter()

        @cache
        def decode() -> Decode:  # loaded in the thread that first needs it
            return decoder(model_path)

        self._decode = decode

    async def keep(self, version: PolicyVersion, episodes: Sequence[Episode], sources: Mapping[TaskId, str]) -> None:
        """Write a share of the evaluation of ``version``. If that fails, the log says why, and the evaluation goes on."""
        kept = episodes[: self._most]
        if not kept:
            return
        self._shares[version] += 1  # above 1 if this generator plays the share of one that died as well
        share = self._shares[version]
        player = self._worker if share == 1 else f"{self._worker}-{share}"
        path = evaluation_file(self._folder, version, player)

        def work() -> None:
            rows = [
                untrained(each, part, Kind.EVALUATION, step=None, version=version, source=sources[each.task_id])
                for each in kept
                for part in range(len(each.trajectories))
            ]
            write(table(rows, self._environment, self._decode()), path)

        try:
            async with asyncio.timeout(WAIT_S):
                await run_in_daemon_thread(work, name="writing episodes")
        except OSError as error:  # a deadline that has passed is one, too
            logger.warning("%s is not written: %s: %s", path, type(error).__name__, error)
        except Exception:  # whatever a tokenizer or Arrow raises, the evaluation has its result
            logger.exception("%s is not written", path)
