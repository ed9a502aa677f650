"""Turns one knob at a time towards more trained tokens a second: a state machine without clock and processes.

It measures the present setting, has a plan foresee what each single turn would bring, makes the best, measures again, and keeps
it or takes it back. What always holds:

* every value lies within the user's bounds, unless a person has set another; at most one knob differs from what was measured;
* what a person sets stays: a move turns its own knob alone, and is taken back by it alone;
* a setting that is foreseen beyond a limit is not tried, and one that is measured beyond a limit is taken back;
* what did not help is not tried again before the workload has drifted;
* :attr:`Controller.target` follows from the recipe and the lines alone, so that a run that was killed goes on from its journal.
"""

import math
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType

import msgspec

from asyncrl.core.recipe.knobs import Setting, pool_of
from asyncrl.core.recipe.tune import DEPTH, RUNNING, TuneConfig
from asyncrl.core.tuning.moves import Changed, Judged, Line, Moved, Rested, Turn, Woke, changed_by
from asyncrl.core.tuning.window import Seen, Window

WORTH = 0.03
"""What a turn must be foreseen to bring at least, to be tried."""
LEAST = 0.02
"""What it must bring at least, to be kept."""
SAME = 0.02
"""Turns that are foreseen to bring as much as the best, but for so much, are as good: that with the fewest engines is made."""
SURE = 2.0
"""Standard errors by which what a turn brought must differ from :data:`LEAST` for a verdict before the last possible step."""
LONGEST = 3
"""A setting is measured for at most so many times ``tune.every`` steps, and its arrival waited for ten times as many."""
SETTLING = 2
"""Steps beside the pipeline depth that are not measured after a turn: their groups were begun before it."""
DRIFT = 0.1
"""By how much the rate, or the length of episodes, must have changed for another look."""
NOTHING: Mapping[str, float] = MappingProxyType({})
BY_OTHERS = "somebody has changed the setting meanwhile"


class Foreseen(msgspec.Struct, frozen=True):
    """What a plan says of a setting: trained tokens a second, and mean staleness."""

    setting: Setting
    rate: float
    staleness: float


class Phase(Enum):
    """What the controller does."""

    MEASURING = auto()
    PLANNING = auto()
    """It waits for a plan, and measures on."""
    MOVING = auto()
    TRYING = auto()
    RETURNING = auto()
    RESTING = auto()


class Controller:
    """See the module. Give it each training step, do what :attr:`turn` and :attr:`asks` say, and write down every line.

    Args:
        setting: the values that the run has now.
        steps: the last training step by which a move can be measured.
        depth: the pipeline depth, where it is no knob.
        machine: what the run computes on; rates of another machine are not compared with its own.
        lines: the journal of the run, if it is resumed.

    Attributes:
        target: the setting that there should be.
        turn: how that comes about; None if nothing is to be turned, or it was.
        asks: the settings of which a plan is wanted, beside the present one; empty while none is.
        said: lines that follow from the journal itself; to be written down first.
    """

    def __init__(
        self, config: TuneConfig, setting: Setting, *, steps: int, depth: int = 1, machine: str = "", lines: Sequence[Line] = ()
    ) -> None:
        self._config, self._steps, self._depth, self._machine = config, steps, depth, machine
        self.target = dict(setting)
        self.turn: Turn | None = None
        self.asks: tuple[Setting, ...] = ()
        self.said: list[Line] = []
        self._phase = Phase.MEASURING
        self._window = Window(LONGEST * config.every)
        self._settling = 0
        self._move: Moved | None = None
        self._rest: Rested | None = None
        self._rejected: set[frozenset[tuple[str, int]]] = set()
        self._step = 0
        self._resume(lines)
        self._settle()

    # What it is told

    def step(self, seen: Seen, setting: Setting, *, arrived: bool = True) -> list[Line]:
        """Take in a training step; returns what is to be written down.

        Args:
            setting: the values that the run is to have, as far as it knows.
            arrived: whether it has them: every engine is up that should be.
        """
        self._step = seen.step
        if self._phase in (Phase.MOVING, Phase.RETURNING):
            return self._arriving(setting, arrived=arrived)
        if setting != self.target:
            return self._changed_by_others(setting)
        if not arrived:  # an engine died: what is measured without it says nothing
            self._measure(Phase.MEASURING if self._phase is Phase.PLANNING else self._phase)
            return []
        if not seen.tokens and self._phase is not Phase.TRYING:  # there would be no rate to compare others with
            return []
        if self._settling:
            self._settling -= 1
            return []
        self._window.add(seen)
        if len(self._window) < self._config.every:
            return []
        match self._phase:
            case Phase.MEASURING:
                return self._look()
            case Phase.TRYING:
                return self._judge()
            case Phase.RESTING:
                return self._look_for_drift()
        return []

    def planned(self, present: Foreseen, others: Sequence[Foreseen], setting: Setting) -> list[Line]:
        """Take in the plan that was asked for; an answer that nobody waits for any more is left alone.

        Args:
            setting: the values that the run is to have now, which somebody may have changed since the plan was asked for.
        """
        if not self._waits_for(present.setting):
            return []
        if setting != self.target:
            return self._changed_by_others(setting)
        if present.rate <= 0:
            return self.unplanned("the plan foresees no trained token", present.setting, setting)
        self.asks = ()
        beyond = self._window.broken(self._config.limits)
        chosen = self._best(present, others, heal=bool(beyond))
        if chosen is None:
            why = (
                f"{' and '.join(beyond)} is beyond its limit, and no knob is foreseen to help" if beyond else "no knob would help"
            )
            return [self._begin_rest(why, beyond=beyond)]
        (knob,) = (knob for knob, value in chosen.setting.items() if value != self.target[knob])
        self._move = Moved(
            step=self._step,
            knob=knob,
            setting=self.target,
            to=chosen.setting[knob],
            foreseen=chosen.rate / present.rate,
            rate=self._window.rate,
            error=self._window.error,
            beyond=beyond,
            machine=self._machine,
        )
        self._phase, self.turn, self.target = Phase.MOVING, Turn(knob, self._move.before, self._move.to), dict(chosen.setting)
        return [self._move]

    def unplanned(self, why: str, asked: Setting, setting: Setting) -> list[Line]:
        """Note that there is no plan, and why; see :meth:`planned`.

        Args:
            asked: the present setting, as the plan was asked for it.
        """
        if not self._waits_for(asked):
            return []
        if setting != self.target:
            return self._changed_by_others(setting)
        return [self._begin_rest(why, again_at=self._step + 4 * self._config.every)]

    def _waits_for(self, asked: Setting) -> bool:
        return self._phase is Phase.PLANNING and asked == self.target

    def made(self) -> None:
        """Note that the run was told of :attr:`turn`, and that :attr:`target` is coming."""
        self.turn = None

    def refused(self, why: str, setting: Setting) -> list[Line]:
        """Note that the run refuses :attr:`turn`, and what it has instead."""
        move = self._move
        lines: list[Line] = [] if move is None else [self._end(None, why, kept=False)]
        if move is None or setting != move.setting:
            lines.append(Changed(self._step, dict(setting), why))
        self.target = dict(setting)
        self._measure()
        return lines

    def finished(self) -> list[Line]:
        """Note that the run has done its last step; what is not judged yet stays as it is."""
        if self._move is None:
            return []
        brought = self._window.rate / self._move.rate if self._phase is Phase.TRYING and len(self._window) > 1 else None
        return [self._end(brought, "the run ended before it was measured to the end", kept=True)]

    @property
    def since(self) -> int:
        """The first training step that the present setting is measured by."""
        return self._window.first if self._window else self._step

    # What it does

    def _arriving(self, setting: Setting, *, arrived: bool) -> list[Line]:
        if self.turn is not None:
            return []
        if setting == self.target and arrived:
            self._measure(Phase.TRYING if self._phase is Phase.MOVING else Phase.MEASURING)
            return []
        if setting == self.target:
            late = self._move is not None and self._step - self._move.step > 10 * self._config.every
            return self._take_back(None, "it did not come about in time") if late else []
        if self._move is not None and setting == self._move.setting:
            return self.refused("it did not come about", setting)
        return self._changed_by_others(setting)

    def _changed_by_others(self, setting: Setting) -> list[Line]:
        lines: list[Line] = []
        if self._move is not None:
            kept = setting.get(self._move.knob) == self._move.to
            lines.append(self._end(None, BY_OTHERS, kept=kept, still_open=True))
        lines.append(Changed(self._step, dict(setting), BY_OTHERS))
        self.target = dict(setting)
        self._measure()
        return lines

    def _look(self) -> list[Line]:
        if self._step + self._settling_steps + self._config.every > self._steps:
            why = "the run ends before another setting could be measured"
            return [self._begin_rest(why, again_at=self._step)]  # by a resume with more steps
        self.asks = tuple(self._candidates())
        if not self.asks:
            return [self._begin_rest("every other value within the bounds was tried")]
        self._phase = Phase.PLANNING
        return []

    def _candidates(self) -> list[Setting]:
        found: list[Setting] = []
        for knob, (least, most) in self._config.knobs.items():
            now = self.target[knob]
            steps = {2 * now, -(-now // 2)} | (set() if knob == RUNNING else {now - 1, now + 1})
            for value in sorted({max(least, min(most, each)) for each in steps} - {now}):
                setting = {**self.target, knob: value}
                if frozenset(setting.items()) not in self._rejected:
                    found.append(setting)
        return found

    def _best(self, present: Foreseen, others: Sequence[Foreseen], *, heal: bool) -> Foreseen | None:
        limit = self._config.limits.staleness_mean
        stale = {id(each): self._window.staleness + each.staleness - present.staleness for each in others}
        kept = [each for each in others if limit is None or stale[id(each)] <= limit]
        if heal:
            fresher = [each for each in others if each.staleness < present.staleness - 0.01]
            within = [each for each in fresher if each in kept]
            if not within:
                return min(fresher, key=lambda each: each.staleness, default=None)
            kept = within
        else:
            kept = [each for each in kept if each.rate >= (1 + WORTH) * present.rate]
        fastest = max((each.rate for each in kept), default=0.0)
        return min((each for each in kept if each.rate >= (1 - SAME) * fastest), key=_cost, default=None)

    def _judge(self) -> list[Line]:
        move, window = self._move, self._window
        assert move is not None
        brought, sure = window.rate / move.rate, SURE * math.hypot(window.error, move.error)
        last = len(window) >= LONGEST * self._config.every or self._step >= self._steps
        beyond = window.broken(self._config.limits)
        worse = [name for name, by in beyond.items() if by >= move.beyond.get(name, 0.0)]
        if not last and not worse and not move.beyond and abs(brought - 1 - LEAST) < sure:
            return []
        if not brought:
            return self._take_back(brought, "no token was trained")
        if worse:
            return self._take_back(brought, f"{' and '.join(worse)} would be beyond its limit")
        if not move.beyond and brought < 1 + LEAST:
            return self._take_back(brought, "" if brought < 1 else "that is too little to tell")
        lines: list[Line] = [self._end(brought, "", kept=True)]
        self._phase = Phase.MEASURING
        return lines + self._look()

    def _take_back(self, brought: float | None, why: str, *, still_open: bool = False) -> list[Line]:
        assert self._move is not None
        self._return(self._move)
        return [self._end(brought, why, kept=False, still_open=still_open)]

    def _return(self, move: Moved | Judged) -> None:
        self.target = {**self.target, move.knob: move.before}
        self._phase, self.turn = Phase.RETURNING, Turn(move.knob, move.to, move.before)

    def _end(self, brought: float | None, why: str, *, kept: bool, still_open: bool = False) -> Judged:
        assert self._move is not None
        move, self._move = self._move, None
        judged = Judged(self._step, move.knob, move.before, move.to, move.foreseen, brought, kept, why, still_open)
        self._remember(move, judged)
        return judged

    def _remember(self, move: Moved, judged: Judged) -> None:
        if not (judged.kept or judged.open):
            self._rejected.add(frozenset({**move.setting, move.knob: move.to}.items()))

    def _begin_rest(self, why: str, again_at: int | None = None, beyond: Mapping[str, float] = NOTHING) -> Rested:
        self._phase, self.asks = Phase.RESTING, ()
        window = self._window
        self._rest = Rested(self._step, dict(self.target), window.rate, window.length, why, again_at, tuple(beyond))
        self._window = Window(self._config.every, window)
        return self._rest

    def _look_for_drift(self) -> list[Line]:
        rest, window = self._rest, self._window
        assert rest is not None
        if self._step < rest.step + self._config.every or self._step + self._settling_steps + self._config.every > self._steps:
            return []
        much = max(DRIFT, LONGEST * window.error)
        if rest.again_at is not None and self._step >= rest.again_at:
            why = "the run has more steps now" if rest.again_at == rest.step else "there was no plan before"
        elif abs(math.log(window.length / rest.length)) > much:
            why = f"episodes {changed_by(rest.length, window.length)}"
        elif abs(math.log(window.rate / rest.rate)) > much:
            why = f"trained tokens a second {changed_by(rest.rate, window.rate)}"
        elif beyond := window.broken(self._config.limits).keys() - rest.beyond:
            why = f"{' and '.join(beyond)} is beyond its limit"
        else:
            return []
        self._rejected.clear()
        self._window = Window(LONGEST * self._config.every, window)
        self._phase = Phase.MEASURING
        return [Woke(self._step, why), *self._look()]

    def _measure(self, phase: Phase = Phase.MEASURING) -> None:
        self._phase, self.turn, self.asks = phase, None, ()
        self._settle()

    def _settle(self) -> None:
        self._settling = self._settling_steps
        if self._phase is not Phase.RESTING:
            self._window = Window(LONGEST * self._config.every)

    @property
    def _settling_steps(self) -> int:
        return SETTLING + max(self._depth, self.target.get(DEPTH, 0))

    # After a resume

    def _resume(self, lines: Sequence[Line]) -> None:
        last: Judged | None = None
        for line in lines:
            match line:
                case Moved():
                    self._move, self._rest, last = line, None, None
                case Judged():
                    if self._move is not None:
                        self._remember(self._move, line)
                    self._move, last = None, line
                case Rested():
                    self._rest, self._phase, last = line, Phase.RESTING, None
                case Changed():
                    self._rest, last = None, None
                case Woke():
                    self._rest = None
                    self._rejected.clear()
            self._step = line.step
        if self._rest is None or self._rest.setting != self.target:
            self._phase = Phase.MEASURING
        if self._move is not None:
            self._go_on_with(self._move)
        elif last is not None and not last.kept and self.target.get(last.knob) == last.to:
            self._return(last)

    def _go_on_with(self, move: Moved) -> None:
        """Finish a move in which the run was killed, or take it back."""
        now = self.target.get(move.knob)
        if self.target != {**move.setting, move.knob: now} or now not in (move.before, move.to):
            self.said = self._changed_by_others(self.target)
        elif now == move.to and move.machine == self._machine:
            self._phase = Phase.TRYING
        elif now == move.to:
            why = "the run was resumed on another machine before it was measured"
            self.said = self._take_back(None, why, still_open=True)
        else:
            self.said = [self._end(None, "the run ended before it was made", kept=False, still_open=True)]


def _cost(foreseen: Foreseen) -> tuple[int, int, int]:
    """What a setting takes: engines, then staleness, then episodes at once."""
    engines = sum(value for knob, value in foreseen.setting.items() if pool_of(knob) is not None)
    return engines, foreseen.setting.get(DEPTH, 0), foreseen.setting.get(RUNNING, 0)
