"""The modelled engine computes the steps that an engine would compute one by one; the plain loop here is the standard."""

import random

import pytest

from asyncrl.core.ids import PolicyVersion
from asyncrl.simulation.engine import ModelEngine, ModelRequest, version_counts
from asyncrl.simulation.events import Events
from asyncrl.simulation.processor import Processor
from asyncrl.simulation.rates import EngineRates, Rate

STEP, REQUEST, PROMPT, CONTEXT = 0.5, 0.01, 0.003, 0.0001


def engine(events: Events, *, cache: float = 0.0, most: int = 1000, cores: float = 0.0, processor: Processor | None = None):
    def rate(value: float) -> Rate:
        return Rate(value, "given")

    rates = EngineRates(
        step=rate(STEP),
        request=rate(REQUEST),
        prompt_token=rate(PROMPT),
        context_token=rate(CONTEXT),
        cache_tokens=rate(cache),
        block_tokens=rate(1),
        step_tokens=rate(1e9),
        cores=rate(cores),
    )
    return ModelEngine(events, rates, processor or Processor(0, 0, events.clock), most)


def plain(arrivals: list[tuple[float, int, int]]) -> list[float]:
    """When each request ends, by computing one step after the other."""
    now, waiting, ended = 0.0, sorted(range(len(arrivals)), key=lambda n: arrivals[n][0]), [0.0] * len(arrivals)
    sampling: dict[int, int] = {}
    while waiting or sampling:
        new = [number for number in waiting if arrivals[number][0] <= now]
        if not new and not sampling:
            now = arrivals[waiting[0]][0]
            continue
        waiting = [number for number in waiting if number not in new]
        behind = sum(arrivals[number][1] + done for number, done in sampling.items())
        # Tokens behind the requests grow within a step, which the model takes as half a token each.
        seconds = STEP + len(sampling) * REQUEST + behind * CONTEXT + len(sampling) * CONTEXT / 2
        now += seconds + sum(arrivals[number][1] for number in new) * PROMPT
        for number in sampling:
            sampling[number] += 1
        sampling |= dict.fromkeys(new, 1)
        for number in [number for number, done in sampling.items() if done == arrivals[number][2]]:
            del sampling[number]
            ended[number] = now
    return ended


def run(events: Events) -> None:
    while events.next():
        pass


@pytest.mark.parametrize("seed", range(6))
def test_requests_end_when_they_would_step_by_step(seed: int):
    rng = random.Random(seed)
    arrivals = [(rng.uniform(0, 30), rng.randint(1, 200), rng.randint(1, 40)) for _ in range(60)]
    events = Events()
    modelled, ended = engine(events), [0.0] * len(arrivals)

    def end(number: int) -> None:
        ended[number] = events.now

    def begin(number: int) -> None:
        _, prompt, sampled = arrivals[number]
        modelled.submit(ModelRequest(number, prompt, sampled, number, 0, lambda: end(number)))

    for number, (at, _, _) in enumerate(arrivals):
        events.after(at, lambda number=number: begin(number))
    run(events)
    assert ended == pytest.approx(plain(arrivals), rel=1e-6)
    assert (modelled.sampled, modelled.prompt_tokens) == (sum(a[2] for a in arrivals), sum(a[1] for a in arrivals))


def test_tokens_are_of_the_version_that_sampled_them_and_a_pause_takes_its_time():
    events = Events()
    modelled = engine(events)
    request = ModelRequest("episode", 0, 10, "group", 0, lambda: None)
    modelled.submit(request)
    events.after(4.2 * (STEP + REQUEST), modelled.pause)
    events.after(4.2 * (STEP + REQUEST) + 100.0, lambda: modelled.load(PolicyVersion(1)))
    run(events)
    assert version_counts([request]) == ((0, 4), (1, 6))
    assert events.now > 100 + 9 * (STEP + REQUEST)


def test_what_an_episode_computed_is_found_again_until_the_version_changes():
    events = Events()
    modelled = engine(events)
    modelled.submit(ModelRequest("episode", 100, 5, "group", 100, lambda: None))
    run(events)
    modelled.submit(ModelRequest("episode", 130, 5, "group", 100, lambda: None))
    modelled.submit(ModelRequest("another of the group", 100, 5, "group", 100, lambda: None))
    run(events)
    assert modelled.prompt_tokens == 100 + 25 + 1
    modelled.load(PolicyVersion(1))
    modelled.submit(ModelRequest("episode", 160, 5, "group", 100, lambda: None))
    run(events)
    assert modelled.prompt_tokens == 126 + 160


def test_a_full_cache_has_the_last_request_computed_again():
    events, ended = Events(), []
    modelled = engine(events, cache=100)
    for number in range(3):
        modelled.submit(ModelRequest(number, 30, 20, number, 0, lambda number=number: ended.append(number)))
    run(events)
    assert ended == [0, 1, 2]
    assert modelled.preempted >= 1
    assert modelled.prompt_tokens > 90, "what was preempted is computed again"


def test_where_two_engines_share_a_core_each_takes_twice_as_long():
    alone, both = Events(), Events()
    for events, count in ((alone, 1), (both, 2)):
        processor = Processor(1, 0, events.clock)
        for number in range(count):
            engine(events, cores=1.0, processor=processor).submit(ModelRequest(number, 0, 20, number, 0, lambda: None))
        run(events)
    assert both.now == pytest.approx(2 * alone.now, rel=1e-3)
