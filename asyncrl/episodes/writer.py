"""Writes kept episodes: rows become an Arrow table, and the table a Parquet file that appears whole or not at all.

One kept trajectory of an episode, and what training made of its tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from asyncrl.core.episode import Episode
from asyncrl.core.routed_experts import RoutedExperts
from asyncrl.core.trajectory import Trajectory
from asyncrl.episodes.files import unfinished_file
from asyncrl.episodes.schema import SCHEMA, Kind, TokenFate

FATES = tuple(TokenFate)
"""The fates in the order of their codes."""


class KeptTrajectory(NamedTuple):
    """A row of the table, before its tokens are text.

    Attributes:
        episode: the episode that it is a trajectory of.
        part: its place among the episode's trajectories.
        kind: what it was played for.
        step: the training step that trained it; None in an evaluation.
        version: the policy version that was trained or evaluated.
        source: the task source, where it is known.
        fates: int8 [T], for each token its place in :data:`FATES`.
        learner_logprobs, advantages, weights: float32 [T], see the schema; None where no loss saw the trajectory.
    """

    episode: Episode
    part: int
    kind: Kind
    step: int | None
    version: int
    source: str | None
    fates: np.ndarray
    learner_logprobs: np.ndarray | None = None
    advantages: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory itself."""
        return self.episode.trajectories[self.part]


def untrained(episode: Episode, part: int, kind: Kind, *, step: int | None, version: int, source: str | None) -> KeptTrajectory:
    """Return a trajectory that no loss trains: of an evaluation, of a greedy episode, or of a role that is not trained."""
    sampled = episode.trajectories[part].loss_mask
    fates = np.where(sampled, fate_code(TokenFate.NOT_TRAINED), fate_code(TokenFate.GIVEN)).astype(np.int8)
    return KeptTrajectory(episode, part, kind, step, version, source, fates)


def fate_code(fate: TokenFate) -> int:
    """The number that stands for ``fate`` in :attr:`KeptTrajectory.fates`."""
    return FATES.index(fate)


Decode = Callable[[list[int]], str]
"""Makes text of token ids, with special tokens."""

_REPEATING = ["kind", "environment", "source", "task_id", "role", "why", "stop_reason", "prompt", "fates.list.element"]
"""Columns whose values repeat. All others would only cost time as a dictionary."""


def decoder(model_path: Path) -> Decode:
    """Load the tokenizer in ``model_path``, and return what makes text of token ids with it, special tokens included.

    Takes seconds where the folder has no ``tokenizer.json``, which transformers must then make.
    """
    file = model_path / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer  # only who writes episodes needs it

        tokenizer = Tokenizer.from_file(str(file))
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(model_path)).backend_tokenizer

    def decode(token_ids: list[int]) -> str:
        text: str = tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    return decode


def table(kept: Sequence[KeptTrajectory], environment: Callable[[str | None], str], decode: Decode) -> pa.Table:
    """Make the table of the ``kept`` trajectories.

    Args:
        environment: names the environment that plays the tasks of a source.
    """
    trajectories, episodes = [each.trajectory for each in kept], [each.episode for each in kept]
    prompts = _Texts(decode)
    columns: dict[str, Any] = {
        "kind": [each.kind for each in kept],
        "step": [each.step for each in kept],
        "version": [each.version for each in kept],
        "environment": [environment(each.source) for each in kept],
        "source": [each.source for each in kept],
        "task_id": [each.task_id for each in episodes],
        "group_id": [each.group_id for each in episodes],
        "sample_index": [each.sample_index for each in episodes],
        "attempt": [each.attempt for each in episodes],
        "part": [each.part for each in trajectories],
        "parts": [len(each.trajectories) for each in episodes],
        "role": [each.role for each in trajectories],
        "parent": [each.parent for each in trajectories],
        "shared": [each.shared for each in trajectories],
        "why": [each.why for each in trajectories],
        "trained": [each.trained for each in trajectories],
        "temperature": [each.sampling.temperature for each in episodes],
        "top_p": [each.sampling.top_p for each in episodes],
        "top_k": [each.sampling.top_k for each in episodes],
        "min_p": [each.sampling.min_p for each in episodes],
        "logprob_convention": [each.sampling.convention for each in episodes],
        "stop_reason": [each.stop_reason for each in episodes],
        "reward": [each.reward for each in episodes],
        "role_rewards": [list(each.role_rewards.items()) for each in episodes],
        "metrics": [list(each.metrics.items()) for each in episodes],
        "prompt": [prompts.of(each.token_ids[: each.prompt_length()]) for each in trajectories],
        "turns": [list(_turns(each, decode)) for each in trajectories],
        "turn_rewards": [[list(turn.rewards.items()) for turn in each.turns] for each in trajectories],
        "began": [round(each.times.began * 1e6) for each in episodes],
        "queued_s": [each.times.queued_s for each in episodes],
        "reset_s": [each.times.reset_s for each in episodes],
        "scoring_s": [each.times.scoring_s for each in episodes],
        "token_ids": _lists([each.token_ids for each in trajectories], np.int32),
        "versions": _lists([each.versions() for each in trajectories], np.int32),
        "logprobs": _lists([each.logprobs for each in trajectories], np.float32),
        "learner_logprobs": _lists([each.learner_logprobs for each in kept], np.float32),
        "teacher_logprobs": _lists([_of_teacher(each) for each in trajectories], np.float32),
        "advantages": _lists([each.advantages for each in kept], np.float32),
        "weights": _lists([each.weights for each in kept], np.float32),
        "experts": [None if each.experts is None else _experts(each.experts) for each in trajectories],
        "traffic": [None if each.part else each.episode.traffic or None for each in kept],
        "fates": _lists([each.fates for each in kept], np.int8, _fates),
    }
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for field, column in ((field, columns[field.name]) for field in SCHEMA)
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def write(episodes: pa.Table, path: Path) -> None:
    """Write a table to ``path``, in place of the file that is there.

    Raises:
        OSError: the disk refuses; nothing is left of the attempt.
    """
    path.parent.mkdir(exist_ok=True)  # nothing above: a run's folder that was moved is not made anew
    unfinished = unfinished_file(path)
    try:
        pq.write_table(episodes, unfinished, compression="zstd", use_dictionary=_REPEATING, write_statistics=False)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _of_teacher(trajectory: Trajectory) -> np.ndarray | None:
    """The teacher's log-probability of each token, 0 where nobody sampled it; None where no teacher was asked."""
    if trajectory.teacher_logprobs is None:
        return None
    of_tokens = np.zeros(len(trajectory.token_ids), np.float32)
    of_tokens[trajectory.loss_mask] = trajectory.teacher_logprobs
    return of_tokens


def _experts(routed: RoutedExperts) -> dict[str, Any]:
    return msgspec.structs.asdict(routed) | {"packed": routed.packed.tobytes()}


def _turns(trajectory: Trajectory, decode: Decode) -> Iterator[dict[str, Any]]:
    turns, token_ids = trajectory.turns, trajectory.token_ids
    next_starts = [*(turn.start for turn in turns), len(token_ids)][1:]
    for turn, next_start in zip(turns, next_starts, strict=True):
        answer = token_ids[turn.end : next_start]
        yield {
            "start": turn.start,
            "end": turn.end,
            "text": decode(token_ids[turn.start : turn.end].tolist()),
            "answer": decode(answer.tolist()) if len(answer) else "",
            "reward": turn.reward,
            "calls": [
                {"tool": call.tool, "seconds": call.seconds, "outcome": call.outcome, "problem": call.problem}
                for call in turn.calls
            ],
            "generating_s": turn.generating_s,
            "environment_s": turn.environment_s,
        }


class _Texts:
    """Decodes the same tokens once: the episodes of a group have one prompt."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: dict[bytes, str] = {}

    def of(self, token_ids: np.ndarray) -> str:
        """The text of ``token_ids`` (int32 [n])."""
        key = token_ids.tobytes()
        if key not in self._known:
            self._known[key] = self._decode(token_ids.tolist())
        return self._known[key]


def _lists(
    parts: Sequence[np.ndarray | None], dtype: type[np.generic], items: Callable[[np.ndarray], pa.Array] = pa.array
) -> pa.Array:
    """A list of each part's values, and null where there is none."""
    lengths = [0 if part is None else len(part) for part in parts]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.concatenate([np.empty(0, dtype), *(part for part in parts if part is not None)]).astype(dtype, copy=False)
    absent = pa.array([part is None for part in parts], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), items(values), mask=absent)


def _fates(codes: np.ndarray) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(map(str, FATES)), pa.string()))
