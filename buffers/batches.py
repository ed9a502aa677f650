"""Chooses batches for the learner, and hands out the same ones again until the learner has a newer checkpoint.

What always holds: no token older than the staleness bound enters a loss; no group is handed out more than ``max_reuse`` times;
a batch that was handed out changes only if a crash destroyed some of its payload.
"""

import random
from collections.abc import Collection, Iterable, Iterator

import msgspec

from asyncrl.buffers.group import Group
from asyncrl.buffers.groups import Groups
from asyncrl.buffers.sampling import Sampler
from asyncrl.buffers.staleness import StalenessPolicy
from asyncrl.buffers.state import BufferState, KeptBatch
from asyncrl.core.batch import Batch, BatchEpisode
from asyncrl.core.episode_records import PayloadRef
from asyncrl.core.errors import LedgerError
from asyncrl.core.ids import GroupId, PolicyVersion
from asyncrl.core.measures.buffer_statistics import GroupState
from asyncrl.core.recipe.schema import BatchConfig

STALE = "over the staleness bound"
PAYLOAD_LOST = "payload lost in a crash"


class Batches:
    """Hands out batches, and keeps them for as long as they may be asked for again.

    Args:
        state: state of the buffer; only this class changes the parts of it that concern batches.
        sampler: chooses the groups of a batch that are not forced into it.
        max_reuse: how often a group may be handed out.
        seed: seed of the sampler's randomness.
    """

    def __init__(
        self,
        config: BatchConfig,
        state: BufferState,
        groups: Groups,
        policy: StalenessPolicy,
        sampler: Sampler,
        *,
        max_reuse: int,
        seed: int,
    ) -> None:
        self._config, self._max_reuse, self._seed = config, max_reuse, seed
        self._state, self._groups, self._policy, self._sampler = state, groups, policy, sampler

    def has_stale(self, version: PolicyVersion) -> bool:
        """Whether there are groups that :meth:`expire` would end at ``version``."""
        return self._groups.index.deciding.has_below(self._policy.oldest_version(version))

    def expire(self, version: PolicyVersion) -> None:
        """End ready groups that are too old for ``version``. Tasks of groups never trained are issued again."""
        for group_id in self._groups.index.deciding.below(self._policy.oldest_version(version)):
            group = self._groups[group_id]
            if group.uses:
                self._groups.end(group, GroupState.TRAINED)
            else:
                self._state.observed.stale_tokens.dropped += group.sampled_tokens()
                self._groups.end(group, GroupState.EXPIRED, STALE)

    def takeable(self, version: PolicyVersion, groups: int) -> bool:
        """Whether :meth:`take` answers or raises at once, instead of asking its caller to wait."""
        if version <= self._state.last_taken:
            return True
        index = self._groups.index
        stale = index.deciding.count_below(self._policy.oldest_version(version))
        return len(index.ready) - stale >= groups and index.can_force(version)

    def take(self, version: PolicyVersion, groups: int) -> Batch:
        """Choose ``groups`` ready groups to train at ``version``; the same ones if asked for again.

        Raises:
            LedgerError: too few groups are ready, the batch must wait for a group, or the batch is no longer kept.
            BadSelection: a user-defined sampler raised an error or broke its contract.
        """
        state, index = self._state, self._groups.index
        if version in state.kept:
            return state.kept[version].batch
        if version <= state.last_taken:
            raise LedgerError(
                f"the batch of version {version} is no longer kept, because the learner has a checkpoint of version "
                f"{state.forgotten}; begin from that one (if it is gone, put it back), or launch a new run"
            )
        self.expire(version)
        if not self.takeable(version, groups):
            raise LedgerError(f"{len(index.ready)} groups are ready; a batch of {groups} for version {version} must wait")
        forced = index.forced(version)
        with index.ready.without(forced) as ready:
            chosen = self._sampler.sample(ready, groups - len(forced), version, random.Random(f"{self._seed}/{version}"))
        consumed = set(chosen.consumed)
        # Groups that had to be in the batch were not drawn at random, so they need no importance weight.
        weights = dict.fromkeys(forced, 1.0) | dict(zip(chosen.sampled, chosen.weights, strict=True))
        batch = Batch(version, self._policy.oldest_version(version), tuple(self._hand_out(weights, version, consumed)))
        state.kept[version] = KeptBatch(batch, list(weights))
        state.last_taken = version
        state.trainings += groups
        if version >= state.version:
            state.unpublished_batches[version] = groups
        return batch

    def _hand_out(self, weights: dict[GroupId, float], version: PolicyVersion, consumed: set[GroupId]) -> Iterator[BatchEpisode]:
        oldest_version = self._policy.oldest_version(version)
        for group_id, weight in weights.items():
            group = self._groups[group_id]
            uses = group.uses + 1
            group.consumed = uses >= self._max_reuse or group_id in consumed
            group.kept += 1
            self._groups.move(group, GroupState.TAKEN, uses=uses)
            if group.oldest_sampled < oldest_version:
                self._state.observed.stale_tokens.masked += _masked_tokens(group, oldest_version)
            for index in sorted(group.records):
                yield BatchEpisode.around(group.records[index], group.task.id, group.source, weight)

    def kept(self) -> dict[PolicyVersion, Batch]:
        """Return the batches that are kept, by version: those that were trained, and one whose training did not end."""
        return {version: kept.batch for version, kept in self._state.kept.items()}

    def trained(self, version: PolicyVersion) -> None:
        """Note that the batch of ``version`` was trained. A second call does nothing.

        Raises:
            LedgerError: the batch was never handed out.
        """
        kept = self._state.kept.get(version)
        if kept is None and version >= self._state.forgotten:
            raise LedgerError(f"the batch of version {version} was never handed out, so it cannot have been trained")
        if kept is None or kept.trained:
            return
        kept.trained = True
        lengths = self._state.observed.lengths_trained
        for group_id in kept.groups:
            group = self._groups[group_id]
            if group.uses == 1:
                for record in group.records.values():
                    lengths.add(record.length)
            if group.consumed:
                self._groups.end(group, GroupState.TRAINED)
            else:
                self._groups.move(group, GroupState.COMMITTED)

    def checkpointed(self, version: PolicyVersion) -> None:
        """Stop keeping batches older than ``version``: the learner never goes back to before it.

        Raises:
            LedgerError: one of them was not trained.
        """
        state = self._state
        old = [taken for taken in state.kept if taken < version]
        for taken in old:
            if not state.kept[taken].trained:
                raise LedgerError(
                    f"there cannot be a checkpoint of version {version} while the batch of version {taken} is not trained"
                )
        for taken in old:
            for group_id in state.kept.pop(taken).groups:
                self._groups.keep_no_longer(self._groups[group_id])
        state.forgotten = max(state.forgotten, version)

    def drop_lost_payload(self, refs: Iterable[PayloadRef]) -> int:
        """Drop the episodes whose payload a crash destroyed, and return how many of them the groups held.

        For groups that were not handed out yet, they are generated again; a kept batch goes on without them.

        Raises:
            LedgerError: a batch that was trained has nothing left to train.
        """
        lost, dropped = set(refs), 0
        for group in self._groups:
            gone = [index for index, record in group.records.items() if record.payload in lost]
            if gone:
                dropped += len(gone)
                self._drop_records(group, gone)
        if dropped:
            for kept in list(self._state.kept.values()):
                self._cut(kept, lost)
        self._state.observed.lost_trajectories += dropped
        return dropped

    def _drop_records(self, group: Group, gone: list[int]) -> None:
        self._groups.lose_records(group, gone)
        if group.state is GroupState.COMMITTED and not group.uses:
            birth = group.oldest_finished() if group.records else group.birth
            self._groups.move(group, GroupState.FAILED, PAYLOAD_LOST, f"task {group.task.id}", birth=birth)
        elif group.state is GroupState.COMMITTED and not group.has_enough(self._config.min_group):
            self._groups.end(group, GroupState.TRAINED)

    def _cut(self, kept: KeptBatch, lost: Collection[PayloadRef]) -> None:
        """Take lost episodes out of a batch, and, if it is not trained yet, whole groups that have too few left."""
        state, version = self._state, kept.batch.version
        left = tuple(episode for episode in kept.batch.episodes if episode.payload not in lost)
        if kept.trained and not any(episode.newest_trained() is not None for episode in left):
            raise LedgerError(
                f"all episodes of the batch of version {version}, which must be trained again, were destroyed; "
                "put the run's payload folder back as it was and resume again; if it is lost, launch a new run (with "
                "buffer.journal.fsync: always, episodes survive a power cut)"
            )
        if not kept.trained:
            cut = {each.group_id: self._groups[each.group_id] for each in kept.batch.episodes if each.payload in lost}
            gone = [group for group in cut.values() if not group.has_enough(self._config.min_group)]
            left = tuple(episode for episode in left if episode.group_id not in {group.id for group in gone})
            for group in gone:
                self._take_out(kept, group)
        kept.batch = msgspec.structs.replace(kept.batch, episodes=left)
        if not left:
            # The learner gets another batch instead.
            del state.kept[version]
            state.trainings -= self._config.groups_per_step
            state.unpublished_batches.pop(version, None)
            state.last_taken = PolicyVersion(version - 1)

    def _take_out(self, kept: KeptBatch, group: Group) -> None:
        kept.groups.remove(group.id)
        group.kept -= 1
        if group.uses > 1:
            self._groups.end(group, GroupState.TRAINED)
        else:
            self._groups.end(group, GroupState.EXPIRED, PAYLOAD_LOST, f"task {group.task.id}")


def _masked_tokens(group: Group, oldest_version: PolicyVersion) -> int:
    return sum(
        record.trainable_tokens(PolicyVersion(0)) - record.trainable_tokens(oldest_version) for record in group.records.values()
    )
