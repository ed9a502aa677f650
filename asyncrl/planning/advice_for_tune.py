"""Says what other sizes would bring to a run that goes on: the process that :mod:`asyncrl.run.tuning.advice_question` asks.

Rates are fitted to the last steps alone, and episodes are drawn from those kept meanwhile, so that a drift counts. It yields to
everything else on the machine.
"""

import contextlib
import os
import sys
from pathlib import Path

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.recipe.knobs import Setting, with_setting
from asyncrl.core.recipe.rules.broken_rules import broken_rules
from asyncrl.core.tuning.controller import Foreseen
from asyncrl.planning.prediction import predict
from asyncrl.planning.rate_fit import Basis, fit_run
from asyncrl.run.tuning.advice_question import AdviceQuestion, TuneAdvice

LEAST_EPISODES = 64
"""Episodes to draw from, for which older steps are looked at too."""
SEEDS, STEPS = 2, 12
"""Modelled runs of a setting, and training steps of each that count."""
_LOWEST_PRIORITY = 19


def answer(question: AdviceQuestion) -> TuneAdvice:
    """Model each setting; those that cannot be are left out."""
    present, *others = question.settings
    try:
        basis = fit_run(Path(question.run), since=question.since, least_episodes=LEAST_EPISODES)
        foreseen = [_foresee(basis, present)]
    except AsyncRLError as error:
        return TuneAdvice(why=f"there is no plan: {error}")
    for setting in others:
        with contextlib.suppress(AsyncRLError):  # the rules, or the model, refuse this one
            foreseen.append(_foresee(basis, setting))
    return TuneAdvice(foreseen)


def _foresee(basis: Basis, setting: Setting) -> Foreseen:
    assert basis.recipe is not None
    recipe = with_setting(basis.recipe, setting)
    if (broken := next(broken_rules(recipe), None)) is not None:
        raise broken
    found = predict(recipe, basis, seeds=SEEDS, steps=STEPS)
    return Foreseen(setting, found.trained_tokens_per_s.mean, found.staleness_mean.mean)


def main() -> None:
    """Answer the question in the arguments, as JSON."""
    os.nice(_LOWEST_PRIORITY)
    sys.stdout.buffer.write(msgspec.json.encode(answer(msgspec.json.decode(sys.argv[1], type=AdviceQuestion))))


if __name__ == "__main__":
    main()
