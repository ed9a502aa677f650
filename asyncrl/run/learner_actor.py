"""One learner rank as a Ray actor: it reads its episodes, trains, and writes its part of each publication.

The driver imports this too, to make the actors, and needs nothing that takes seconds to import: torch is imported by the actor.
"""

import gc
import logging
import socket
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import ray

from asyncrl.core.batch import Batch, SampleName
from asyncrl.core.episode import Episode, decode
from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.files.memory_owners import MemoryOwner
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.measures.time_split import LearnerTime
from asyncrl.core.process.control_groups import usable_cores
from asyncrl.core.process.long_import import long_import
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.metrics import MOST_LOAD
from asyncrl.learners.rank import FileMeeting, RankSpec, TcpMeeting
from asyncrl.learners.step_report import StepReport
from asyncrl.run.buffer.payload_shards import PayloadSource
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.actor_process import begin_actor
from asyncrl.run.host.exactly_once import ExactlyOnce
from asyncrl.run.host.ray_calls import AGAIN, this_node
from asyncrl.run.kept.trained_episodes import TrainedEpisodes
from asyncrl.run.nodes.model_folder import ModelFolder
from asyncrl.run.pool.probe_scores import PROBED_ROWS, PROBED_TOKENS, LearnerScores

if TYPE_CHECKING:
    from asyncrl.learners.learner import Learner
    from asyncrl.weights.nccl.broadcast_sender import BroadcastSender

logger = logging.getLogger(__name__)

LAST_FILES_S = 1.0
"""How long a rank that is to end, perhaps because the run was interrupted, waits for its last files."""


class LearnerActor:
    """Rank ``rank`` of the learner. Methods run one at a time, in the order they were called.

    Once it has started, the driver calls its methods by :meth:`call`, which outlasts a broken connection.

    Args:
        sharing: how many processes of the run share the node's cores, this one included.
        broadcasts: whether engines may take its part of a publication from its GPU.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: ModelFolder,
        buffer: Any,
        rank: int,
        sharing: int,
        folder: RunFolder,
        run_id: str,
        broadcasts: bool,
    ) -> None:
        begin_actor(folder.learner_log(rank))
        with long_import():
            from asyncrl.weights.shm.shared_tensors import SharedMemory

        self._trajectories = folder.trajectories
        self._recipe, self._model, self._buffer, self._rank = recipe, model, buffer, rank
        self._run_id, self._sharing, self._memory = run_id, sharing, MemoryOwner(run_id)
        self._files = SharedMemory(run_id=run_id, rank=rank, node=this_node())
        self._broadcasts = broadcasts
        self._sender: BroadcastSender | None = None
        self._listening: socket.socket | None = None
        self._probed: tuple[tuple[int, ...], ...] = ()
        self._is_reporter = self._routed = False
        self._learner: Learner | None = None
        self._payload: PayloadSource | None = None
        self._kept: TrainedEpisodes | None = None
        self._once = ExactlyOnce()

    @ray.method(max_task_retries=AGAIN)
    def call(self, number: int, method: str, *arguments: Any) -> Any:
        """Call a method, once, however often Ray delivers the call ``number``."""
        return self._once.do(number, partial(getattr(self, method), *arguments))

    @ray.method(max_task_retries=AGAIN)
    def node(self) -> str:
        """Ray's id of the node that this rank is on."""
        return this_node()

    def make_meeting(self, on_one_node: bool) -> FileMeeting | TcpMeeting:
        """Make the place where all ranks meet (their rendezvous). Only called on rank 0."""
        if on_one_node:
            return FileMeeting.make(memory_file_system() / f"asyncrl-{self._run_id}-ranks")
        meeting, self._listening = TcpMeeting.listen(ray.util.get_node_ip_address())
        return meeting

    def start(self, meeting: FileMeeting | TcpMeeting) -> None:
        """Join the other ranks and load the model; a collective call."""
        from asyncrl.learners.learner import Learner

        recipe, layout = self._recipe, self._recipe.learner.layout
        rank = RankSpec(
            rank=self._rank,
            layout=layout,
            meeting=meeting,
            listening=None if self._listening is None else self._listening.detach(),
            # On a laptop the engines share these cores, and threads that wait for each other cost more than they gain.
            threads=max(1, usable_cores() // self._sharing),
        )
        self._is_reporter = rank.is_reporter
        with self._model.loading() as model_path:
            self._kept = TrainedEpisodes(recipe, model_path, self._trajectories, rank)
            self._learner = Learner(
                recipe.algorithm,
                recipe.learner,
                recipe.deadlines,
                temperature=recipe.sampling.temperature,
                steps=recipe.steps,
                seed=recipe.seed,
                model_path=model_path,
                rank=rank,
            )
        self._files.reserve(self._learner.shards())
        gc.freeze()  # what is loaded lives on: Megatron collects garbage at each checkpoint, and would search it for a second

    def train(self, batch: Batch) -> StepReport:
        """Train ``batch``, as the learner's part of one training step; a collective call."""
        from asyncrl.learners.batches.token_records import TokenRecords

        learner, began = self._started(), time.perf_counter()
        assert self._kept is not None
        needed = learner.rows_needed(batch)
        chosen = self._kept.chosen(batch, needed)
        episodes = self._fetch_episodes(batch, list(dict.fromkeys(name[:2] for name in [*needed, *chosen])))
        seconds = time.perf_counter() - began
        records = TokenRecords(chosen)
        report = learner.step(batch, episodes, records)
        if self._is_reporter:
            report = msgspec.structs.replace(report, time=report.time + LearnerTime(data=seconds))
            self._routed = any(reading.metric == MOST_LOAD for reading in report.readings)
        probed = [episodes[name[:2]].trajectories[name[2]].token_ids for name in needed[:PROBED_ROWS]]
        self._probed = tuple(tuple(tokens[:PROBED_TOKENS].tolist()) for tokens in probed if len(tokens) > 1)
        self._kept.write(batch, episodes, chosen, records)
        return msgspec.structs.replace(report, news=self._kept.news())

    def _fetch_episodes(self, batch: Batch, names: list[SampleName]) -> dict[SampleName, Episode]:
        if self._payload is None:
            self._payload = PayloadSource.of(self._buffer, f"learner rank {self._rank}")
        lying = {episode.name: episode.payload for episode in batch.episodes}
        payloads = self._payload.fetch_payloads([lying[name] for name in names])
        return {name: decode(payload) for name, payload in zip(names, payloads, strict=True)}

    def write_trajectories(self, seconds: float) -> str:
        """Wait until the trajectories that were trained are in their files, or given up; returns what the user should know."""
        assert self._kept is not None
        if not self._kept.flush(seconds):
            return f"the last trajectories are not kept: the disk did not take them within {seconds:g} s"
        return self._kept.news()

    def write_shards(self, version: PolicyVersion, read: Collection[PolicyVersion]) -> Publication:
        """Write this rank's shards of ``version`` over none of the versions that are ``read``, and return where they are."""
        part = self._files.write(version, self._started().shards(), read)
        if not self._broadcasts:
            return part
        if self._sender is None:
            import torch

            from asyncrl.weights.nccl.broadcast_sender import BroadcastSender

            host, device = ray.util.get_node_ip_address(), torch.device("cuda", torch.cuda.current_device())
            self._sender = BroadcastSender(self._rank, host, device, self._recipe.deadlines.publish)
        return self._sender.offer(part)

    def score(self) -> LearnerScores | None:
        """Score a few rows of the last batch with the weights as they are; a collective call. None on all ranks but one."""
        learner = self._started()
        found = learner.log_probabilities(self._probed)
        if found is None or not self._is_reporter:
            return None
        return LearnerScores(learner.version, self._probed, tuple(found), self._routed)

    def save_pretrained(self, folder: Path) -> None:
        """Export the model as a Hugging Face folder; a collective call."""
        self._started().save_pretrained(folder)

    def start_checkpoint(self, folder: Path, version: PolicyVersion) -> None:
        """Begin to write the state at ``version``, which must be the one just trained; a collective call."""
        learner = self._started()
        if learner.version != version:
            raise ValueError(f"learner rank {self._rank} is at version {learner.version}, not at {version}")
        learner.start_checkpoint(folder)

    def finish_checkpoint(self) -> None:
        """Wait until the checkpoint that was begun is on disk; a collective call."""
        self._started().finish_checkpoint()

    def restore(self, folder: Path) -> PolicyVersion:
        """Load a checkpoint and return its policy version; a collective call."""
        return self._started().load_checkpoint(folder)

    def close(self) -> None:
        """Leave the other ranks and remove what was published."""
        try:
            if self._kept is not None and not self._kept.flush(LAST_FILES_S):
                logger.warning("the last trajectories are not kept: the disk did not take them within %g s", LAST_FILES_S)
            if self._learner is not None:
                self._learner.close()
        finally:
            if self._sender is not None:
                self._sender.close()
            self._files.close()

    def _started(self) -> "Learner":
        if self._learner is None:
            raise RuntimeError(f"learner rank {self._rank} was used before start()")
        return self._learner


RemoteLearner = ray.remote(LearnerActor)
