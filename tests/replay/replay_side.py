"""What a rank of a replay does, in a process that is forked instead of started."""

from asyncrl.learners.rank import RankSpec
from asyncrl.replay.job import Answer, Job
from asyncrl.replay.rank_process import replay


def answers_of(spec: RankSpec, job: Job) -> list[Answer]:
    """Compute a job, and return what the rank would have said."""
    said: list[Answer] = []
    replay(job, spec.rank, said.append)
    return said
