"""Makes the tiny model in a process of its own: ``python -m asyncrl.run.warm_up REQUEST``. Prints progress as JSON lines."""

import sys
from typing import Any

import msgspec


class Request(msgspec.Struct, frozen=True):
    """Which tiny model to make."""

    environment_options: dict[str, Any]
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
    from learners.tiny import TinyProgress, ensure_tiny_model

    def report(message: Step | Made) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    def on_progress(progress: TinyProgress) -> None:
        report(Step(progress.fraction, progress.text))

    report(Made(str(ensure_tiny_model(request.environment_options, request.seed, on_progress))))


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Request))
