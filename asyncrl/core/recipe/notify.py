"""Section ``notify`` of a recipe: who is told when the run ends."""

from typing import Literal

from asyncrl.core.recipe.environment import VariableName
from asyncrl.core.recipe.section import Section, Text


class NotifyConfig(Section, frozen=True):
    """Who is told when the run ends: a command, a URL, or both.

    Attributes:
        command: a command line. It gets a JSON object about the end on its standard input, with a sentence, ``text``, in it, and
            ``ASYNCRL_RUN``, ``ASYNCRL_STATUS`` and ``ASYNCRL_REASON`` in its environment.
        url: where the object is sent to (POST), as chat services take it; ``$NAME`` stands for the value of that environment
            variable, so that no secret stands in the recipe.
        token_variable: name of the environment variable whose value is sent to ``url`` as bearer token; null if none is.
        when: ``always``, or only after a ``failure``. An interrupted run is no failure.
    """

    command: tuple[Text, ...] = ()
    url: Text | None = None
    token_variable: VariableName | None = None
    when: Literal["always", "failure"] = "always"
