"""Finds the kept traffic of an episode that an agent played."""

import re

import msgspec
import pyarrow.compute as pc

from asyncrl.core.errors import RecipeError
from asyncrl.core.text import short
from asyncrl.episodes.reader import Choice, EpisodeReader
from asyncrl.episodes.schema import Kind

_GROUP_AND_SAMPLE = re.compile(r"(\d+)/(\d+)")
_COLUMNS = ["kind", "version", "task_id", "group_id", "sample_index"]


class KeptTraffic(msgspec.Struct, frozen=True):
    """The traffic of an episode, with what identifies it.

    Attributes:
        traffic: as :class:`asyncrl.generators.gateway.traffic.Traffic` reads it.
    """

    kind: Kind
    version: int
    task_id: str
    group_id: int
    sample_index: int
    traffic: bytes

    @property
    def name(self) -> str:
        """The episode in words."""
        if self.kind is Kind.EVALUATION:
            return f"task {self.task_id}, evaluation of version {self.version}"
        return f"group {self.group_id}, sample {self.sample_index}, task {self.task_id}"


def find_traffic(reader: EpisodeReader, episode: str) -> KeptTraffic:
    """Find the traffic of an episode.

    Args:
        episode: ``GROUP/SAMPLE``, or the id of a task, whose newest episode is taken.

    Raises:
        RecipeError: there is no such episode, or its traffic was not kept.
        EpisodesUnreadable: a file is damaged.
    """
    named = _GROUP_AND_SAMPLE.fullmatch(episode)
    choice = Choice(task=episode) if named is None else Choice(group=int(named[1]), sample=int(named[2]))
    with_traffic = reader.table(msgspec.structs.replace(choice, traffic=True), [*_COLUMNS, "traffic"])
    if len(with_traffic):
        newest = with_traffic.take(pc.sort_indices(with_traffic, sort_keys=[("version", "descending")])[:1])
        return msgspec.convert(newest.to_pylist()[0], KeptTraffic)
    if len(reader.table(choice, ["task_id"])):
        problem = f"the traffic of episode {short(episode)} was not kept"
        raise RecipeError(
            "environment.keep_traffic", problem, "set environment.keep_traffic=true in the recipe, and run it again"
        )
    others = reader.table(Choice(traffic=True), ["group_id", "sample_index", "task_id"]).slice(0, 5).to_pylist()
    there = [f"{each['group_id']}/{each['sample_index']}" if each["group_id"] >= 0 else each["task_id"] for each in others]
    remedy = f"traffic is kept of {', '.join(dict.fromkeys(there))}, and others" if there else "see `asyncrl show RUN`"
    raise RecipeError("EPISODE", f"no episode {short(episode)} is kept in {reader.folder}", remedy)
