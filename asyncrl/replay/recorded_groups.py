"""Groups of episodes that runs have recorded, as batches of another run that trains from them.

What always holds: an episode keeps its tokens, its rewards and the log-probabilities with which it was sampled; only its name and
its versions are new. Every token counts as sampled by the version that trains it: versions of another run say nothing here.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from asyncrl.buffers.filters import left_out_by
from asyncrl.core.batch import Batch, BatchEpisode
from asyncrl.core.episode import Episode
from asyncrl.core.episode_records import compared_rewards
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import GroupId, PolicyVersion
from asyncrl.core.recipe.schema import Recipe
from asyncrl.replay.kept_steps import KeptSteps

Group = tuple[BatchEpisode, ...]


class Best(msgspec.Struct, frozen=True):
    """Which episodes of a group are taken: the ``count`` with the highest rewards, none of them below ``least``.

    A greedy episode, which nothing trains, is not among them, and stays for the others to be compared with.
    """

    count: int | None = None
    least: float | None = None

    def of(self, group: Group) -> Group:
        """Choose from a group; the order stays."""
        sampled = [episode for episode in group if not episode.greedy]
        best = sorted(sampled, key=lambda episode: episode.reward, reverse=True)[: self.count]
        taken = {episode.name for episode in best if self.least is None or episode.reward >= self.least}
        return tuple(episode for episode in group if episode.greedy or episode.name in taken) if taken else ()


class Recorded(msgspec.Struct, frozen=True):
    """Groups in the order in which they were trained first, and the folders of their payload, by the shard that records name."""

    groups: tuple[Group, ...]
    payload: dict[int, Path]

    @classmethod
    def of(cls, runs: Sequence[KeptSteps], first: int, last: int | None) -> "Recorded":
        """Gather the groups of the steps ``first`` to ``last`` of several runs.

        Raises:
            RecipeError: a run keeps no batch of these steps, or their payload is not here.
        """
        payload: dict[int, Path] = {}
        found: list[tuple[int, Group]] = []
        for run in runs:
            base = len(payload)
            payload |= {base + shard: folder for shard, folder in run.payload.items()}
            steps = run.batches_of(first, last)
            if not steps:
                asked = f"steps {first} to {last}" if last else f"steps from {first} on"
                raise RecipeError("--from", f"{run.folder.path} keeps no batch of {asked}", run.there())
            run.check_payload(steps, "--from")
            seen: set[GroupId] = set()
            for version in steps:
                for group in _groups_of(run.batches[version]):
                    if group[0].group_id not in seen:  # a group that was reused is taken once
                        seen.add(group[0].group_id)
                        found.append((version, tuple(_in_shard(episode, base) for episode in group)))
        found.sort(key=lambda each: each[0])
        return cls(tuple(group for _, group in found), payload)

    def chosen(self, recipe: Recipe, best: Best) -> "Recorded":
        """Return what is left of it by ``best`` and by the recipe's filters.

        Raises:
            RecipeError: too few groups for a batch are left.
        """
        left = []
        for group in self.groups:
            taken = best.of(group)
            by_role = [list(column.values()) for column in compared_rewards(taken).values()]
            named = zip(*[episode.rewards for episode in taken], strict=True)  # those that the recipe compares one by one
            rewards = [episode.reward for episode in taken]
            if taken and by_role and not left_out_by(recipe.buffer.filters, rewards, [*by_role, *named]):
                left.append(taken)
        if len(left) < recipe.batch.groups_per_step:
            problem = (
                f"{len(left)} of {len(self.groups)} recorded groups are left, and a step trains {recipe.batch.groups_per_step}"
            )
            raise RecipeError("batch.groups_per_step", problem, "lower it, record more, or leave fewer out")
        return Recorded(tuple(left), self.payload)

    def batches(self, recipe: Recipe) -> Iterator[Batch]:
        """Yield the batch of each step: through all groups in their order, and then, each time in another one, again."""
        size, taken, passes = recipe.batch.groups_per_step, 0, 0
        waiting: list[Group] = []
        for step in range(1, recipe.steps + 1):
            while len(waiting) < size:
                order = list(self.groups)
                if passes:
                    random.Random(f"{recipe.seed}/{passes}").shuffle(order)
                waiting += order
                passes += 1
            version, chosen = PolicyVersion(step - 1), waiting[:size]
            del waiting[:size]
            episodes = [
                _renamed(episode, GroupId(taken + place), version) for place, group in enumerate(chosen) for episode in group
            ]
            taken += size
            yield Batch(version, version, tuple(episodes))


def as_of(episode: Episode, record: BatchEpisode, version: PolicyVersion) -> Episode:
    """Return a recorded episode with the name that a batch gives it, its tokens sampled by ``version``."""
    trajectories = [
        msgspec.structs.replace(
            each,
            version_spans=tuple(
                msgspec.structs.replace(span, version=version) if span.version >= 0 else span for span in each.version_spans
            ),
        )
        for each in episode.trajectories
    ]
    name = {"group_id": record.group_id, "sample_index": record.sample_index}
    return msgspec.structs.replace(episode, trajectories=tuple(trajectories), **name)


def _groups_of(batch: Batch) -> list[Group]:
    groups: dict[GroupId, list[BatchEpisode]] = {}
    for episode in batch.episodes:
        groups.setdefault(episode.group_id, []).append(episode)
    return [tuple(group) for group in groups.values()]


def _in_shard(episode: BatchEpisode, base: int) -> BatchEpisode:
    payload = msgspec.structs.replace(episode.payload, shard=base + episode.payload.shard)
    return msgspec.structs.replace(episode, payload=payload, weight=1.0)


def _renamed(episode: BatchEpisode, group_id: GroupId, version: PolicyVersion) -> BatchEpisode:
    trajectories = tuple(
        msgspec.structs.replace(each, sampled=((version, total),) if (total := sum(count for _, count in each.sampled)) else ())
        for each in episode.trajectories
    )
    return msgspec.structs.replace(episode, group_id=group_id, trajectories=trajectories, committed_version=version)
