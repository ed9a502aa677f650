"""Asks for a plan of a run that goes on, in a process of its own: neither the driver nor its event loop waits for it.

The process is :mod:`asyncrl.planning.advice_for_tune`, which reads the run's folder as ``asyncrl plan --from`` does, and yields
to everything else on the machine.
"""

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import ComponentFailed, DeadlineExceeded
from asyncrl.core.files.file_errors import cause_and_remedy
from asyncrl.core.recipe.knobs import Setting
from asyncrl.core.tuning.controller import Foreseen
from asyncrl.run.host.helper_process import run_helper

MODULE = "asyncrl.planning.advice_for_tune"
PLAN_S = 180.0
"""How long a plan may take. It is asked for once in some dozens of training steps."""


class AdviceQuestion(msgspec.Struct, frozen=True):
    """What each of several settings would bring.

    Attributes:
        run: the run's folder.
        since: the training step since which the run has the present setting: rates are fitted to these steps.
        settings: the present setting, and others.
    """

    run: str
    since: int
    settings: Sequence[dict[str, int]]


class TuneAdvice(msgspec.Struct, frozen=True):
    """What is foreseen of the settings that can be modelled, the present one first; or why of none."""

    foreseen: Sequence[Foreseen] = ()
    why: str = ""


AskAdvice = Callable[[Path, int, Sequence[Setting]], Coroutine[Any, Any, TuneAdvice]]
"""Answers for a run's folder, the step since which its setting holds, and settings."""


async def ask_advice(run: Path, since: int, settings: Sequence[Setting]) -> TuneAdvice:
    """Ask a process; an answer that does not come in time is none."""
    question = AdviceQuestion(str(run), since, [dict(setting) for setting in settings])
    said: list[bytes] = []
    try:
        await run_helper(MODULE, question, said.append, task="a plan for tune", seconds=PLAN_S, OMP_NUM_THREADS="1")
        return msgspec.json.decode(b"".join(said), type=TuneAdvice)
    except DeadlineExceeded:
        return TuneAdvice(why=f"the plan was not ready in {PLAN_S:g} s")
    except (ComponentFailed, msgspec.DecodeError) as error:
        return TuneAdvice(why=f"there is no plan: {error}")
    except OSError as error:  # no process or memory is left for it
        return TuneAdvice(why=f"there is no plan: {cause_and_remedy(error)}")
