"""Groups of episodes from files: trajectories that runs have kept, or conversations that others have written.

What always holds: what the recipe would train on wrong numbers is refused before anything starts; the episodes lie in a folder of
their own, from which ranks read them as they read a run's payload.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from asyncrl.buffers.payload_store import PayloadWriter
from asyncrl.core.batch import BatchEpisode
from asyncrl.core.episode import Episode, encode
from asyncrl.core.episode_records import EpisodeRecord
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import GroupId
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.trajectory import Sampling
from asyncrl.episodes.writer import decoder
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.replay.conversation_rows import are_conversations
from asyncrl.replay.conversations import episodes_of_conversations
from asyncrl.replay.kept_files import TOKENS, kept_episodes_of

SUFFIXES = (".parquet", ".jsonl")
_SEGMENT_BYTES = 1 << 30


class FileGroups(msgspec.Struct, frozen=True):
    """Groups in their order.

    Attributes:
        with_logprobs: whether the log-probabilities with which they were sampled are known.
        kept, lacking: how many are of kept trajectories, and how many of these have fewer episodes than ``batch.group_size``.
    """

    groups: tuple[tuple[BatchEpisode, ...], ...]
    with_logprobs: bool
    kept: int
    lacking: int


def is_file_of_episodes(path: Path) -> bool:
    """Whether a path is that of a file of episodes, not of a run's folder."""
    return path.suffix in SUFFIXES or path.is_file()


def has_messages(file: Path) -> bool:
    """Whether a file holds conversations.

    Raises:
        RecipeError: it cannot be read.
    """
    if not file.is_file():
        raise RecipeError("--from", f"there is no {file}", "name a run's folder, or a file of episodes")
    if file.suffix not in SUFFIXES:
        problem = f"{file} is neither {' nor '.join(SUFFIXES)}"
        raise RecipeError("--from", problem, "write conversations as lines of JSON, or name a run's folder")
    if file.suffix == ".jsonl":
        return True
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(file).names
    except (OSError, pa.ArrowException) as error:
        raise RecipeError("--from", f"{file} cannot be read: {error}", "name a file of Parquet") from error
    if not are_conversations(names) and TOKENS not in names:
        problem = f"{file} holds neither conversations nor kept trajectories: its columns are {', '.join(names)}"
        raise RecipeError("--from", problem, "give it a column of messages (docs/how-to/replay.md)")
    return are_conversations(names)


def read_files(
    files: Sequence[Path], recipe: Recipe, model: Path, steps: tuple[int, int | None], folder: Path, shard: int
) -> FileGroups:
    """Read files of episodes, those of kept trajectories as one run's.

    Args:
        model: the folder of the model that is to be trained.
        steps: which steps' kept trajectories are taken; None as the last for all.
        folder: where the episodes are put.
        shard: the number that records give it.

    Raises:
        RecipeError: a file cannot be read, or the recipe cannot be trained on it.
    """
    told = [file for file in files if has_messages(file)]
    kept = [file for file in files if file not in told]
    groups: list[list[Episode]] = []
    if kept:
        episodes = kept_episodes_of(kept, *steps, decoder(model))
        if not episodes:
            raise RecipeError("--from", f"{kept[0]} and its like hold no whole episode of these steps", "name others")
        sampled = [each.sampling for each in episodes if each.sampling.temperature]
        check_sampling(recipe, sampled, kept[0])
        check_greedy(recipe, len(sampled) < len(episodes), kept[0])
        groups += _grouped(episodes)
    whole, lacking = len(groups), sum(len(group) < recipe.batch.group_size for group in groups)
    if told:
        if recipe.algorithm.uses_behaviour:
            problem = f"uses the log-probabilities with which tokens were sampled, and {told[0]} has none"
            remedy = (
                "train without them: algorithm.loss={kind: cross_entropy} "
                "algorithm.correction={anchor: proximal_recomputed, weight: none}"
            )
            raise RecipeError("algorithm.correction", problem, remedy)
        chat = ChatFormat.load(str(model), recipe.model)
        for file in told:
            groups += _grouped(episodes_of_conversations(file, chat, recipe.sampling.temperature))
    if recipe.algorithm.teacher is not None and not all(_is_taught(each) for group in groups for each in group):
        problem = f"needs a teacher's log-probabilities, which {(told or kept)[0]} does not have"
        raise RecipeError("algorithm.teacher", problem, "train from what a run with a teacher has recorded, or leave it out")
    return FileGroups(tuple(_written(groups, recipe, folder, shard)), not told, whole, lacking)


def _is_taught(episode: Episode) -> bool:
    """Whether a teacher was asked about all that would be trained of an episode."""
    return all(each.teacher_logprobs is not None for each in episode.trajectories if each.trained and each.turns)


def check_sampling(recipe: Recipe, sampled: Iterable[Sampling], where: Path) -> None:
    """Refuse episodes that were sampled otherwise than the recipe's algorithm can be trained on."""
    for each in sampled:
        if each.temperature != recipe.sampling.temperature:
            problem = f"is {recipe.sampling.temperature:g}, and {where} was sampled at {each.temperature:g}"
            remedy = f"set it to {each.temperature:g}: log-probabilities are of that temperature"
            raise RecipeError("sampling.temperature", problem, remedy)
        if recipe.algorithm.uses_behaviour and each.truncated:
            cut = "top-p, top-k or min-p, so its log-probabilities are not of the whole distribution"
            problem = f"{where} was sampled with {cut}"
            remedy = (
                "train without them: algorithm.correction={anchor: proximal_recomputed, weight: none}, with "
                "buffer.max_staleness=0 or algorithm.loss={kind: cross_entropy}"
            )
            raise RecipeError("algorithm.correction", problem, remedy)


def check_greedy(recipe: Recipe, has_greedy: bool, where: Path) -> None:
    """Refuse groups with a greedy episode if the recipe's advantage needs none, and the other way round."""
    if has_greedy != (recipe.algorithm.greedy_sample is not None):
        problem = f"of this kind needs a greedy episode in each group, or none, and {where} is not like that"
        raise RecipeError("algorithm.advantage.kind", problem, "take another advantage, such as grpo")


def _grouped(episodes: Sequence[Episode]) -> list[list[Episode]]:
    """Group episodes that follow each other; two steps may have groups of one number."""
    groups: list[list[Episode]] = []
    taken: set[int] = set()
    for episode in episodes:
        if not groups or groups[-1][0].group_id != episode.group_id or episode.sample_index in taken:
            groups.append([])
            taken = set()
        groups[-1].append(episode)
        taken.add(episode.sample_index)
    return groups


def _written(groups: Sequence[Sequence[Episode]], recipe: Recipe, folder: Path, shard: int) -> list[tuple[BatchEpisode, ...]]:
    writer = PayloadWriter(folder, shard, "files", segment_bytes=_SEGMENT_BYTES, fsync=False)
    found, most = [], recipe.learner.micro_batch_tokens
    for number, group in enumerate(groups):
        for episode in group:
            if (longest := max(map(len, episode.trajectories))) > most:
                problem = f"{most} cannot hold {episode.task_id}, which has {longest} tokens"
                raise RecipeError("learner.micro_batch_tokens", problem, f"set it to at least {longest}")
        own = [msgspec.structs.replace(each, group_id=GroupId(number)) for each in group]
        records = []
        for episode, ref in zip(own, writer.append([encode(each) for each in own]), strict=True):
            try:
                record = EpisodeRecord.of(episode, ref, recipe.algorithm.reward_names)
            except ValueError as error:
                problem = f"task {episode.task_id}: {error}"
                raise RecipeError("--from", problem, "leave the file out, or rewards that it does not have") from error
            records.append(BatchEpisode.around(record, episode.task_id, "", 1.0))
        found.append(tuple(records))
    writer.close()
    return found
