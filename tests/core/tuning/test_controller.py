"""The controller of ``tune`` in a world of formulas: what it turns, keeps and takes back, and what it does after a kill."""

import random
from collections.abc import Callable, Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.recipe.tune import DEPTH, RUNNING, TuneConfig, TuneLimitsConfig
from asyncrl.core.tuning.controller import Controller, Foreseen
from asyncrl.core.tuning.moves import Changed, Judged, Line, Moved, Rested, Woke
from asyncrl.core.tuning.window import Seen

ENGINES = "generators.count"
KNOBS = {ENGINES: (1, 4), DEPTH: (1, 4)}
START = {ENGINES: 1, DEPTH: 1}
Rate = Callable[[Mapping[str, int]], float]


def rate(setting: Mapping[str, int]) -> float:
    """Engines and depth each limit the rate; three engines feed all that the learner can train."""
    return 1000.0 * min(setting[ENGINES], setting[DEPTH] + 0.5, 2.8)


def by_engines(setting: Mapping[str, int]) -> float:
    return 1000.0 * setting[ENGINES]


def stale(setting: Mapping[str, int]) -> float:
    return 0.8 * setting.get(DEPTH, 1)


class World:
    """A run whose rate is a formula. A move takes some steps to arrive, and a plan some steps to come.

    Args:
        plan: what the plan takes the rate to be.
        noise: relative standard deviation of a step's time.
    """

    def __init__(
        self,
        config: TuneConfig,
        start: Mapping[str, int] = START,
        *,
        real: Rate = rate,
        plan: Rate | None = None,
        noise: float = 0.03,
        seed: int = 0,
        steps: int = 600,
    ) -> None:
        self.config, self.real, self.plan, self.noise, self.steps = config, real, plan or real, noise, steps
        self.random = random.Random(seed)
        self.setting, self.length, self.step = dict(start), 100, 0
        self.lines: list[Line] = []
        self.history: list[dict[str, int]] = []
        self.answer_at = self.arrives_at = 0
        self.refuses: Callable[[Mapping[str, int]], str] = lambda setting: ""
        self.sample_size: float | None = None
        self.launch()

    def launch(self, machine: str = "here") -> None:
        """Begin, or go on from the journal."""
        self.controller = Controller(self.config, self.setting, steps=self.steps, lines=self.lines, machine=machine)
        self.lines += self.controller.said
        self.answer_at = 0

    def run(self, steps: int, until: Callable[[], bool] = lambda: False) -> "World":
        for _ in range(steps):
            if until():
                break
            self._step()
        return self

    def _step(self) -> None:
        self.step += 1
        controller = self.controller
        seconds = self.random.lognormvariate(0.0, self.noise)
        tokens = round(self.real(self.setting) * seconds * self.random.lognormvariate(0.0, self.noise))
        seen = Seen(self.step, tokens, max(1, tokens // self.length), seconds, stale(self.setting), self.sample_size)
        self.history.append(dict(self.setting))
        self.lines += controller.step(seen, dict(self.setting), arrived=self.step >= self.arrives_at)
        if controller.asks and not self.answer_at:
            self.answer_at, self.asked = self.step + 2, (dict(controller.target), *controller.asks)
        if self.answer_at and self.step >= self.answer_at:
            self.answer_at = 0
            present, *others = [Foreseen(each, self.plan(each), stale(each)) for each in self.asked]
            self.lines += controller.planned(present, others, dict(self.setting))
        self.turn()

    def turn(self) -> None:
        """Do what is wanted."""
        controller = self.controller
        if (turn := controller.turn) is None:
            return
        wanted = {**self.setting, turn.knob: turn.to}
        if why := self.refuses(wanted):
            self.lines += controller.refused(why, self.setting)
            return
        self.arrives_at = self.step + 5
        if self.setting[turn.knob] == turn.before:
            self.setting = wanted
        controller.made()

    def of(self, kind: type[Line]) -> list[Line]:
        return [line for line in self.lines if isinstance(line, kind)]


def config(limits: TuneLimitsConfig | None = None, **knobs: tuple[int, int]) -> TuneConfig:
    return TuneConfig(knobs=knobs or KNOBS, limits=limits or TuneLimitsConfig(), every=8)


def test_it_climbs_from_a_bad_start_one_knob_at_a_time_and_then_rests():
    world = World(config()).run(400)
    assert world.setting == {ENGINES: 3, DEPTH: 3}
    assert isinstance(world.lines[-1], Rested)
    assert all(judged.kept for judged in world.of(Judged))
    moves = world.of(Moved)
    for move, judged in zip(moves, world.of(Judged), strict=True):
        assert judged.brought == pytest.approx(move.foreseen, rel=0.05)
    quiet = world.lines[-1].step
    assert world.run(150).lines[-1].step == quiet, "there is nothing to say while nothing helps"


def test_what_a_plan_promised_in_vain_is_taken_back_and_not_tried_again_until_the_workload_drifts():
    world = World(config(), real=lambda setting: 1000.0, plan=rate, noise=0.01).run(400)
    assert world.setting == START
    judged = world.of(Judged)
    assert judged
    assert not any(each.kept for each in judged)
    tried = [(each.knob, each.to) for each in judged]
    assert len(set(tried)) == len(tried)
    before = len(world.lines)
    world.length, world.real = 150, rate
    world.run(200)
    assert isinstance(world.lines[before], Woke)
    assert world.lines[before].why.startswith("episodes grew by ")
    assert world.setting == {ENGINES: 3, DEPTH: 3}


def test_no_setting_is_tried_that_is_foreseen_beyond_the_limit_of_staleness():
    world = World(config(TuneLimitsConfig(staleness_mean=1.7))).run(400)
    assert world.setting == {ENGINES: 3, DEPTH: 2}
    assert max(each[DEPTH] for each in world.history) == 2


def test_a_run_that_begins_beyond_a_limit_gets_within_it_though_it_becomes_slower():
    world = World(config(TuneLimitsConfig(staleness_mean=1.7)), {ENGINES: 4, DEPTH: 4}).run(300)
    assert world.setting[DEPTH] == 2
    assert world.lines[0].sentence.startswith(
        "tune: buffer.pipeline_depth 4 -> 2 is tried: because staleness_mean is beyond its limit; "
    )
    assert world.of(Judged)[0].kept


def test_a_limit_that_no_plan_foresees_takes_a_move_back():
    world = World(config(TuneLimitsConfig(sample_size=0.5)))
    world.run(200, until=lambda: bool(world.of(Moved)))
    world.sample_size = 0.4
    world.run(40, until=lambda: bool(world.of(Judged)))
    (judged,) = world.of(Judged)
    assert (judged.kept, judged.why) == (False, "sample_size would be beyond its limit")
    assert world.controller.target == START


def test_a_limit_that_no_knob_helps_is_said_once():
    world = World(config(TuneLimitsConfig(sample_size=0.5), **{ENGINES: (1, 4)}), {ENGINES: 1}, real=lambda setting: 1000.0)
    world.sample_size = 0.4
    world.run(200)
    assert [line.sentence for line in world.lines] == [
        "tune: stays at generators.count 1: sample_size is beyond its limit, and no knob is foreseen to help"
    ]


def test_what_the_run_refuses_is_said_and_not_asked_for_again():
    world = World(config())
    world.refuses = lambda setting: "there is no room for it" if setting[ENGINES] > 1 else ""
    world.run(400)
    assert world.setting == {ENGINES: 1, DEPTH: 1}
    refused = [line.sentence for line in world.of(Judged)]
    assert refused == ["tune: generators.count 1 -> 2 is taken back: there is no room for it"]


def test_a_newcomer_that_does_not_come_up_is_no_move():
    world = World(config())
    world.run(200, until=lambda: world.setting != START)
    world.setting = dict(START)
    world.run(10, until=lambda: bool(world.of(Judged)))
    assert world.of(Judged)[0].why == "it did not come about"
    assert world.controller.target == START


def test_a_person_who_changes_a_knob_meanwhile_has_the_last_word():
    world = World(config())
    world.run(200, until=lambda: world.setting != START).run(8)
    world.setting = {ENGINES: 2, DEPTH: 4}
    world.run(1)
    assert [line.sentence for line in world.lines[1:]] == [
        "tune: generators.count 1 -> 2 is kept: somebody has changed the setting meanwhile",
        "tune: goes on from generators.count 2, buffer.pipeline_depth 4: somebody has changed the setting meanwhile",
    ]
    assert world.controller.target == {ENGINES: 2, DEPTH: 4}


@pytest.mark.parametrize("there_is", [True, False])
def test_a_person_who_changes_a_knob_while_a_plan_is_made_has_the_last_word(there_is: bool):
    """The answer comes before the next training step, by which the controller would see what has changed."""
    world = World(config())
    world.run(200, until=lambda: bool(world.controller.asks))
    world.setting = {ENGINES: 4, DEPTH: 1}
    if there_is:
        present, *others = [Foreseen(each, rate(each), stale(each)) for each in (START, {ENGINES: 1, DEPTH: 2})]
        lines = world.controller.planned(present, [msgspec.structs.replace(each, rate=9e9) for each in others], world.setting)
    else:
        lines = world.controller.unplanned("too few episodes", START, world.setting)
    assert [line.sentence for line in lines] == [
        "tune: goes on from generators.count 4, buffer.pipeline_depth 1: somebody has changed the setting meanwhile"
    ]
    assert (world.controller.turn, world.controller.target) == (None, world.setting)


def test_a_plan_of_a_setting_that_is_no_more_says_nothing_of_the_present_one():
    world = World(config())
    world.run(200, until=lambda: bool(world.controller.asks))
    world.setting = {ENGINES: 2, DEPTH: 1}
    world.answer_at = 0
    world.run(200, until=lambda: bool(world.controller.asks) and world.controller.target != START)
    assert world.controller.unplanned("too few episodes", START, world.setting) == []
    assert world.controller.asks


@pytest.mark.parametrize("number", range(2))
def test_a_move_turns_its_knob_alone_and_so_does_its_taking_back(number: int):
    """A person turns the other knob between what the controller decides and when that is done."""
    world = World(config(), real=lambda setting: 1000.0, plan=rate)
    kind = (Moved, Judged)[number]
    decided = lambda: bool(world.of(kind))  # noqa: E731
    act, world.turn = world.turn, lambda: None if decided() else act()
    world.run(400, until=decided)
    assert world.controller.turn is not None
    other = next(knob for knob in KNOBS if knob != world.controller.turn.knob)
    world.setting[other], world.turn = 4, act
    world.turn()
    world.run(1)
    assert world.setting[other] == world.controller.target[other] == 4


@pytest.mark.parametrize("rested", [True, False])
def test_a_resume_keeps_what_a_person_chose_though_it_was_once_taken_back(rested: bool):
    world = World(config(**{ENGINES: (1, 2)}), {ENGINES: 1}, real=lambda setting: 1000.0, plan=by_engines)
    world.run(400, until=lambda: bool(world.of(Rested)) if rested else bool(world.of(Judged)) and world.setting == {ENGINES: 1})
    world.run(10)
    world.setting = {ENGINES: 2}
    world.run(1)
    assert isinstance(world.lines[-1], Changed)
    world.launch()
    assert world.run(30).setting == {ENGINES: 2}


def test_a_resume_with_a_value_that_was_once_taken_back_begins_with_it():
    """Nobody saw the change: the resume was given another recipe."""
    world = World(config(**{ENGINES: (1, 2)}), {ENGINES: 1}, real=lambda setting: 1000.0, plan=by_engines)
    world.run(400, until=lambda: bool(world.of(Rested)))
    world.setting = {ENGINES: 2}
    world.launch()
    assert world.run(30).setting == {ENGINES: 2}


def test_a_resume_keeps_what_was_changed_while_there_was_nobody_to_see_it():
    """A move was under way when the run was killed; the recipe that it is resumed with has another value of another knob."""
    world = World(config(), real=lambda setting: 1000.0, plan=rate)
    world.run(400, until=lambda: world.setting != START)
    (move,) = world.of(Moved)
    other = next(knob for knob in KNOBS if knob != move.knob)
    world.setting[other] = 4
    chosen = dict(world.setting)
    world.launch()
    assert isinstance(world.lines[-1], Changed)
    assert world.run(5).setting == chosen


def test_a_way_back_that_the_run_refuses_is_said_and_not_tried_again_by_a_resume():
    world = World(config(**{ENGINES: (1, 2)}), {ENGINES: 1}, real=lambda setting: 1000.0, plan=by_engines)
    world.refuses = lambda setting: "nobody may leave" if setting[ENGINES] == 1 else ""
    world.run(400, until=lambda: isinstance(world.lines[-1], Changed) if world.lines else False)
    assert world.lines[-1].sentence == "tune: goes on from generators.count 2: nobody may leave"
    world.launch()
    assert world.controller.turn is None


def test_steps_that_train_nothing_end_no_run():
    world = World(config(), noise=0.01)
    world.run(400, until=lambda: bool(world.of(Moved)))
    world.real = lambda setting: 0.0
    world.run(100, until=lambda: bool(world.of(Judged)))
    assert world.of(Judged)[0].why == "no token was trained"
    world.run(100)
    world.real = rate
    world.run(300)
    assert all(line.rate > 0 for line in world.of(Moved))


def test_a_plan_without_a_rate_is_none():
    world = World(config(), plan=lambda setting: 0.0).run(60)
    assert world.lines[0].sentence.endswith(": the plan foresees no trained token")


def test_while_an_engine_is_away_no_plan_is_asked_for():
    world = World(config())
    world.run(200, until=lambda: bool(world.controller.asks))
    world.arrives_at = world.step + 4
    world.run(1)
    assert not world.controller.asks


def test_nothing_is_begun_that_could_not_be_measured_before_the_end_and_the_rest_stays():
    world = World(config(), steps=30).run(25)
    (move,) = world.of(Moved)
    assert move.step < 16
    world.lines += world.controller.finished()
    assert world.lines[-1].sentence.endswith("the run ended before it was measured to the end")
    assert world.of(Judged)[-1].kept


def test_a_resume_with_more_steps_looks_again():
    world = World(config(), steps=12).run(12)
    assert [line.sentence for line in world.lines] == [
        "tune: stays at generators.count 1, buffer.pipeline_depth 1: the run ends before another setting could be measured"
    ]
    world.steps = 400
    world.launch()
    assert world.run(388).setting == {ENGINES: 3, DEPTH: 3}
    assert world.lines[1].sentence == "tune: looks again for a better setting: the run has more steps now"


def test_without_a_plan_nothing_is_turned_and_another_is_asked_for_later():
    world = World(config())
    world.run(30, until=lambda: bool(world.controller.asks))
    world.lines += world.controller.unplanned("there is no plan: too few episodes", START, START)
    world.answer_at = 0
    assert world.lines[-1].sentence == (
        "tune: stays at generators.count 1, buffer.pipeline_depth 1: there is no plan: too few episodes"
    )
    world.run(60)
    assert world.lines[1].sentence == "tune: looks again for a better setting: there was no plan before"
    assert world.of(Moved)


def test_steps_that_differ_much_are_measured_for_longer():
    def judged_after(noise: float) -> int:
        world = World(config(), noise=noise)
        world.run(200, until=lambda: bool(world.of(Judged)))
        return world.of(Judged)[0].step - world.of(Moved)[0].step

    assert judged_after(0.6) > judged_after(0.01)


def test_more_at_once_is_turned_by_factors():
    world = World(config(**{RUNNING: (16, 128)}), {RUNNING: 16}, real=lambda setting: 1000.0 * min(60, setting[RUNNING]))
    world.run(300)
    assert world.setting == {RUNNING: 64}


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("number", range(3))
def test_a_move_in_whose_middle_the_run_was_killed_is_finished_or_taken_back(made: bool, number: int):
    """The line is written, and then the driver dies: before it has turned the knob, or after."""
    world = World(config())
    world.run(400, until=lambda: len(world.of(Moved)) > number)
    move = world.of(Moved)[-1]
    world.setting = {**move.setting, move.knob: move.to} if made else dict(move.setting)
    before = len(world.lines)
    world.launch()
    if made:
        assert world.lines[before:] == []
    else:
        assert [line.sentence for line in world.lines[before:]] == [
            f"tune: {move.knob} {move.before} -> {move.to} is taken back: the run ended before it was made"
        ]
    world.run(400)
    assert world.setting == {ENGINES: 3, DEPTH: 3}


def test_a_move_is_not_judged_by_another_machine():
    world = World(config())
    world.run(400, until=lambda: bool(world.of(Moved)))
    world.launch(machine="elsewhere")
    assert world.lines[-1].why == "the run was resumed on another machine before it was measured"
    assert world.controller.target == START
    world.run(400)
    assert world.setting == {ENGINES: 3, DEPTH: 3}


def test_a_run_killed_before_a_move_was_taken_back_takes_it_back():
    world = World(config(), real=lambda setting: 1000.0, plan=rate)
    world.run(400, until=lambda: bool(world.of(Judged)))
    judged = world.of(Judged)[0]
    world.setting = {**START, judged.knob: judged.to}
    world.launch()
    assert world.controller.target == START
    assert world.run(5).setting == START


def test_a_resumed_run_stays_quiet():
    world = World(config()).run(400)
    count = len(world.lines)
    world.launch()
    assert len(world.run(100).lines) == count


def test_lines_are_read_back_as_they_were():
    world = World(config()).run(400)
    for line in world.lines:
        assert msgspec.json.decode(msgspec.json.encode(line), type=Line) == line


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_bounds_and_limits_hold_whatever_happens(data: st.DataObject):
    """Rates, plans, noise, limits and kills are any; the setting is within the bounds, and one knob is turned at a time."""
    tables = [
        data.draw(st.dictionaries(st.tuples(st.integers(1, 4), st.integers(1, 4)), st.integers(100, 3000))) for _ in range(2)
    ]

    def of(table: dict[tuple[int, int], int]) -> Rate:
        return lambda setting: float(table.get((setting[ENGINES], setting[DEPTH]), 1000))

    limit = data.draw(st.sampled_from([None, 0.9, 1.7, 2.5]))
    knobs = {ENGINES: data.draw(st.sampled_from([(1, 2), (1, 4), (2, 3)])), DEPTH: data.draw(st.sampled_from([(1, 2), (1, 4)]))}
    start = {knob: data.draw(st.integers(*bounds)) for knob, bounds in knobs.items()}
    world = World(
        config(TuneLimitsConfig(staleness_mean=limit), **knobs),
        start,
        real=of(tables[0]),
        plan=of(tables[1]),
        noise=data.draw(st.sampled_from([0.01, 0.3])),
        seed=data.draw(st.integers(0, 99)),
    )
    for _ in range(data.draw(st.integers(1, 3))):
        world.run(data.draw(st.integers(1, 120)))
        before = dict(world.setting)
        if data.draw(st.booleans()) and world.controller.turn is None:
            world.launch()
        assert sum(before[knob] != world.controller.target[knob] for knob in knobs) <= 1
    world.run(200)
    for earlier, later in zip(world.history, world.history[1:], strict=False):
        assert sum(earlier[knob] != later[knob] for knob in knobs) <= 1
        for knob, (least, most) in knobs.items():
            assert least <= later[knob] <= most
        if limit is not None and stale(later) > limit:
            assert later[DEPTH] <= earlier[DEPTH], "nothing goes beyond a limit"
    open_moves = 0
    for line in world.lines:
        open_moves += isinstance(line, Moved) - isinstance(line, Judged)
        assert open_moves in (0, 1)
