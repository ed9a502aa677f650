"""One rank of a replay, as a process of its own: ``python -m asyncrl.replay.rank_process JOB RANK DESCRIPTOR LOG``.

It answers through the file descriptor, which the supervising process (:mod:`asyncrl.replay.rank_group`) reads. What it logs goes
to a file even where a hook has the terminal, so that what the hook prints is not lost among it.
"""

import inspect
import logging
import os
import resource
import sys
from bdb import BdbQuit
from collections.abc import Callable, Iterable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from asyncrl.buffers.payload_store import PayloadReader
from asyncrl.core.batch import Batch, RowName, SampleName
from asyncrl.core.episode import Episode, decode
from asyncrl.core.episode_records import PayloadRef
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.measures.metrics import combine
from asyncrl.core.plug_ins.plug_in_function import FunctionBroken, UserFunction, find_function
from asyncrl.core.text import describe_error
from asyncrl.learners.rank import FileMeeting, RankSpec
from asyncrl.replay.job import Answer, Failed, Job, Loaded, Replayed, Stopped, encoder, jobs
from asyncrl.replay.odd_rewards import odd_rewards
from asyncrl.replay.recorded_groups import as_of

if TYPE_CHECKING:
    from asyncrl.replay.watching import Watching

logger = logging.getLogger(__name__)


def replay(job: Job, rank: int, say: Callable[[Answer], None]) -> None:
    """Compute the steps of ``job`` on one rank; a collective call. Raises what :class:`asyncrl.learners.learner.Learner` does."""
    from asyncrl.learners.learner import Learner  # before anything of Megatron, which it prepares torch for

    hook = None if job.hook is None else hook_of(job.hook)
    recipe, layout = job.recipe, job.recipe.learner.layout
    spec = RankSpec(rank=rank, layout=layout, meeting=FileMeeting(job.meeting), threads=job.threads)
    learner = Learner(
        recipe.algorithm,
        recipe.learner,
        recipe.deadlines,
        temperature=recipe.sampling.temperature,
        steps=recipe.steps,
        seed=recipe.seed,
        model_path=job.model_path,
        rank=spec,
    )
    from asyncrl.learners.megatron.network import TrainingDiverged
    from asyncrl.replay.hook import StopReplay
    from asyncrl.replay.watching import Watching
    from asyncrl.weights.fingerprint import Fingerprints

    with closing(learner):
        if job.checkpoint is not None:
            learner.load_checkpoint(job.checkpoint)
        say(Loaded())
        for batch in job.batches:
            step, watch = batch.version + 1, None
            if step >= job.first and (hook is not None or job.top or job.gap):
                watch = Watching(step, rank, hook, job.top, job.gap, odd_rewards(batch), reports=spec.is_slice_reporter)
            try:
                episodes = episodes_of(batch, learner.rows_needed(batch), job.payload, renamed=job.renamed)
                report = learner.step(batch, episodes, watch=watch)
            except TrainingDiverged as error:
                if step < job.first:
                    raise
                seen = Replayed(step, {}, None, 0, moved=False, peak_bytes=peak_bytes(), diverged=str(error))
                say(_watched(seen, watch))
                return
            except StopReplay as stop:
                say(Stopped(step, str(stop)))
                return
            except FunctionBroken as error:
                if not isinstance(error.__cause__, BdbQuit):
                    raise
                say(Stopped(step, "the debugger was quit"))
                return
            proof = Fingerprints()
            for shard in learner.shards():
                proof.add(shard)
            if (saved := job.saved.get(step)) is not None:
                learner.start_checkpoint(saved)
                learner.finish_checkpoint()
            readings, moved = combine(report.readings), report.weights_moved
            say(_watched(Replayed(step, readings, report.hardware, proof.total(), moved, peak_bytes()), watch))


def _watched(done: Replayed, watch: "Watching | None") -> Replayed:
    """Return an answer with what the watch has seen of its step."""
    if watch is None:
        return done
    rows, tokens = watch.carried()
    gaps, gap_by = watch.gaps()
    return msgspec.structs.replace(done, rows=rows, tokens=tokens, gaps=gaps, gap_by=gap_by)


def hook_of(name: str) -> UserFunction:
    """Load the hook ``module:function``.

    Raises:
        RecipeError: there is no such function, or its module cannot be imported.
    """
    found = find_function(name, "--hook")
    code = inspect.unwrap(found).__code__
    return UserFunction("--hook", name, os.path.abspath(code.co_filename), code.co_firstlineno, found)


def episodes_of(
    batch: Batch, names: Iterable[RowName], payload: dict[int, Path], *, renamed: bool = False
) -> dict[SampleName, Episode]:
    """Read the episodes of a batch that rows called ``names`` are in; ``renamed`` if the batch calls them otherwise than their
    payload does. Raises what :meth:`PayloadReader.read` does."""
    records = {episode.name: episode for episode in batch.episodes}
    lying: dict[SampleName, PayloadRef] = {name: episode.payload for name, episode in records.items()}
    wanted = list(dict.fromkeys(name[:2] for name in names))
    found: dict[SampleName, Episode] = {}
    for shard, folder in payload.items():
        here = [name for name in wanted if lying[name].shard == shard]
        with closing(PayloadReader(folder)) as reader:
            found |= {name: decode(each) for name, each in zip(here, reader.read([lying[name] for name in here]), strict=True)}
    return {name: as_of(each, records[name], batch.version) for name, each in found.items()} if renamed else found


def peak_bytes() -> int:
    """Return the most memory that this process has had, on the host and on its GPU."""
    import torch

    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + on_gpu


def main(job_file: Path, rank: int, descriptor: int, log: Path) -> None:
    """Read the job, do it, and answer; an error is an answer, too."""
    logging.basicConfig(level=logging.INFO, filename=log)
    with Connection(descriptor) as connection:

        def say(answer: Answer) -> None:
            connection.send_bytes(encoder.encode(answer))

        try:
            job = jobs.decode(job_file.read_bytes())
            os.chdir(job.code)
            sys.path.append(str(job.beside))
            replay(job, rank, say)
        except (Exception, SystemExit) as error:
            # The hook is the user's, so it may raise anything; whatever it is, the supervising process shows it.
            logger.exception("rank %d failed", rank)
            own = isinstance(error, AsyncRLError)
            say(Failed(str(error) if own else describe_error(error), own))
            sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
