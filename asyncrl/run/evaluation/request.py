"""What a user asks of an evaluation of models."""

from typing import Annotated

import msgspec


class EvaluationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asks to be evaluated.

    Attributes:
        models: paths of Hugging Face folders and of runs; ``tiny`` for the tiny model.
        recipe: path or name of the recipe; None for that of the first run among the models.
        overrides: changes of the recipe, as in ``asyncrl launch``.
        tasks: how many tasks to play, the first of each source in turn; None for all.
        samples: episodes of each task; None for ``evaluation.samples``, and where that is null for 8, or for 1 where
            ``evaluation.temperature`` is 0.
        versions: the policy versions of each run; empty for its newest.
    """

    models: tuple[str, ...]
    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    tasks: Annotated[int, msgspec.Meta(ge=1)] | None = None
    samples: Annotated[int, msgspec.Meta(ge=1)] | None = None
    versions: tuple[int, ...] = ()
