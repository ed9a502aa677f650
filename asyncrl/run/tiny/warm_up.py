"""Makes the tiny model in a process of its own: ``python -m asyncrl.run.tiny.warm_up REQUEST``. Prints progress as JSON lines."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.core.task import Task
from asyncrl.run.host.helper_process import explaining
from asyncrl.run.tiny.player import Player


class Request(msgspec.Struct, frozen=True):
    """Which tiny model to make.

    Attributes:
        players: the environments that it is made for, by member of the recipe.
        model: the recipe's section.
    """

    players: dict[str, Player]
    model: ModelConfig
    seed: int


class Step(msgspec.Struct, frozen=True, tag=True):
    """How far the warm-up has come, in [0, 1] and in words."""

    fraction: float
    text: str


class Made(msgspec.Struct, frozen=True, tag=True):
    """The folder of the finished model; the last line."""

    path: str


def main(request: Request) -> None:
    """Make the model, unless it was made before."""
    from asyncrl.learners.tiny import TinyProgress, ensure_tiny_model

    def report(message: Step | Made) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    def on_progress(progress: TinyProgress) -> None:
        report(Step(progress.fraction, progress.text))

    def judge(folder: Path, tasks: Mapping[str, Sequence[Task]]) -> dict[str, list[float]]:
        from asyncrl.run.tiny.player import play_greedily

        return play_greedily(folder, request.players, request.model, tasks)

    environments = {member: player.environment for member, player in request.players.items()}
    report(Made(str(ensure_tiny_model(environments, request.seed, on_progress, judge=judge))))


if __name__ == "__main__":
    with explaining():
        main(msgspec.json.decode(sys.argv[1], type=Request))
