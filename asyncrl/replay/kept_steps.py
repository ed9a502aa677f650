"""What a run still has of its training steps: the batches in its journal, the checkpoints they can begin from, their record.

What always holds: nothing of the run is changed, and what is no longer there is refused by its name before anything is computed.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from asyncrl.core.batch import Batch
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.text import pluralize
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.run.buffer.inspect_buffer import recorded_buffer
from asyncrl.run.folder.buffer_folder import BufferFolder
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.folder.step_log import RecordedSteps, StepLog
from asyncrl.run.recipe.compose import compose


class Start(msgspec.Struct, frozen=True):
    """What a replay begins from: the policy ``version``, and its checkpoint; None for the model that the run began with."""

    version: PolicyVersion
    checkpoint: Path | None


class KeptSteps(msgspec.Struct, frozen=True):
    """What the run in ``folder`` has of its steps.

    Attributes:
        batches: the batches that are kept, by the version that they were trained from; one of them may be of a step that did
            not end, such as one that diverged.
        starts: what a replay may begin from, oldest first.
        payload: the folders of the payload shards, by number; those of other hosts may be missing.
        record: what each step made.
    """

    folder: RunFolder
    batches: dict[PolicyVersion, Batch]
    starts: tuple[Start, ...]
    payload: dict[int, Path]
    record: RecordedSteps

    @classmethod
    def of(cls, folder: RunFolder) -> "KeptSteps":
        """Read what a run has. Raises what :func:`asyncrl.run.buffer.inspect_buffer.recorded_buffer` does."""
        try:
            recipe = compose(str(folder.recipe))
        except RecipeError as error:
            error.add_note(f"so says {folder.recipe}: if another version of asyncrl made the run, that one can read it")
            raise
        batches = recorded_buffer(folder).batches.kept()
        buffer = BufferFolder.of(recipe.buffer, folder.path, folder.run_id)
        saved = sorted(checkpoints.versions(folder.checkpoints))
        starts = [Start(version, checkpoints.path_of(folder.checkpoints, version)) for version in saved if version]
        shards = {shard: buffer.shard(shard) for shard in range(recipe.buffer.shards)}
        record = RecordedSteps(StepLog(folder.steps).read())
        return cls(folder, batches, (Start(PolicyVersion(0), None), *starts), shards, record)

    def start_of(self, first: int, last: int) -> Start:
        """Return what to begin from to compute the steps ``first`` to ``last`` again: the newest version before them.

        Raises:
            RecipeError: a batch or a checkpoint that is needed is gone, or a step was not trained yet.
        """
        usable = [start for start in self.starts if start.version < first]
        for start in reversed(usable):
            if all(version in self.batches for version in range(start.version, last)):
                self.check_payload([PolicyVersion(version) for version in range(start.version, last)], "--step")
                return start
        raise self._refused(first, last)

    def _refused(self, first: int, last: int) -> RecipeError:
        trained = max([self.record.last, *(version + 1 for version in self.batches)])
        asked = f"step {first}" if first == last else f"steps {first} to {last}"
        if last > trained:
            return RecipeError(
                "--step", f"{self.folder.path} has trained {trained} steps, so there is no step {last}", self.there()
            )
        missing = [version + 1 for version in range(first - 1, last) if version not in self.batches]
        if missing:
            problem = f"the batch of step {spans(missing)} is no longer kept in {self.folder.path}"
            return RecipeError("--step", problem, self.there())
        before = [start for start in self.starts if start.version < first]
        needed = [version + 1 for version in range(before[-1].version, first - 1) if version not in self.batches]
        problem = (
            f"{asked} cannot begin from a checkpoint: the newest before it is of version {before[-1].version}, and the batch of "
            f"step {spans(needed)} is no longer kept"
        )
        return RecipeError("--step", problem, self.there())

    def there(self) -> str:
        """Say which steps can be computed again, or what would have had to be kept."""
        reach = []
        for start in self.starts:
            step = start.version
            while step in self.batches:
                step = PolicyVersion(step + 1)
                reach.append(int(step))
        if reach:
            return f"steps {spans(sorted(set(reach)))} can be replayed"
        return "none can be replayed; launch with a larger checkpoint.keep, or with buffer.journal.keep (docs/how-to/replay.md)"

    def batches_of(self, first: int, last: int | None) -> list[PolicyVersion]:
        """Return the versions whose batches are kept, of the steps ``first`` to ``last`` (None: all later ones), in order."""
        return [version for version in sorted(self.batches) if first <= version + 1 <= (last or version + 1)]

    def check_payload(self, versions: Collection[PolicyVersion], place: str) -> None:
        """Refuse batches whose episodes lie in a shard, or in a file of it, that is not on this machine or not whole.

        Args:
            place: the option to blame.

        Raises:
            RecipeError: names the shard's folder, or the file.
        """
        lying = [episode.payload for version in versions for episode in self.batches[version].episodes]
        for shard, episodes in Counter(ref.shard for ref in lying).items():
            if not self.payload[shard].is_dir():
                needed = f"the payload of {pluralize(episodes, 'episode')} is needed from it"
                problem = f"{self.payload[shard]} is not there, and {needed}"
                raise RecipeError(place, problem, "copy that folder here, from the run's host that has it")
        ends: dict[Path, int] = {}
        for ref in lying:
            file = self.payload[ref.shard] / ref.segment
            ends[file] = max(ends.get(file, 0), ref.offset + ref.size)
        for file, end in ends.items():
            found = file.stat().st_size if file.is_file() else 0
            if found < end:
                problem = f"{file} has {found:,} bytes, and {end:,} are needed"
                raise RecipeError(place, problem, "copy it here again, whole, from the run's host")


def spans(numbers: Sequence[int]) -> str:
    """Write ascending numbers as ``3``, ``3 to 5`` or ``3 to 5, 9``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join(" to ".join(map(str, span)) for span in found)
