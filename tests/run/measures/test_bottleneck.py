"""What holds a run up is named, with the key that would change it and what that would bring."""

import msgspec
import pytest
from made_time import made_time

from asyncrl.generators.finished_episodes import FinishedEpisodes, ToolCounts
from asyncrl.run.measures.bottleneck import Kind, SlowTool, find_bottleneck
from asyncrl.run.recipe.compose import compose

RECIPE = compose(
    "quickstart",
    ["generators.count=2", "generators.max_running=64", "learner.data_parallel=1", "buffer.pipeline_depth=1"],
)


def found(depth=1, **shares):
    return find_bottleneck(made_time(**shares), RECIPE, depth, 20)


@pytest.mark.parametrize(
    ("shares", "kind", "key"),
    [
        ({"training": 0.95, "waiting": 0.05, "idle": 0.6}, Kind.LEARNER, "learner.data_parallel 1 -> 2"),
        ({"training": 0.3, "waiting": 0.7, "idle": 0.02, "tools": 0.1}, Kind.GENERATION, "generators.max_running 64 -> 128"),
        ({"training": 0.2, "waiting": 0.8, "idle": 0.8, "tools": 0.95}, Kind.TOOLS, "generators.max_running 64 -> 128"),
        ({"training": 0.2, "waiting": 0.8, "idle": 0.1, "tools": 0.9}, Kind.TOOLS, "generators.max_running 64 -> 128"),
        ({"training": 0.3, "publishing": 0.6, "waiting": 0.1, "idle": 0.6}, Kind.PUBLICATION, "batch.groups_per_step 16 -> 32"),
        ({"training": 0.2, "waiting": 0.8, "idle": 0.7, "paused": 0.7}, Kind.PUBLICATION, "batch.groups_per_step 16 -> 32"),
        ({"training": 0.4, "waiting": 0.6, "idle": 0.6, "held_back": 0.9}, Kind.STALENESS, "buffer.pipeline_depth 1 -> 2"),
        # What engines do may be split up as it may: while the learner waits for longer than it trains, it is not the learner.
        (
            {"training": 0.43, "waiting": 0.5, "idle": 0.04, "evaluating": 0.25, "tools": 0.4},
            Kind.GENERATION,
            "max_running 64 -> 128",
        ),
        # Engines that never idle hold up a learner that waits, however long it trains.
        ({"training": 0.64, "waiting": 0.36, "idle": 0.04, "cores": 0.7}, Kind.GENERATION, "generators.max_running 64 -> 128"),
        ({"training": 0.6, "publishing": 0.25, "waiting": 0.15, "idle": 0.1}, Kind.LEARNER, "learner.data_parallel 1 -> 2"),
        ({"training": 0.8, "waiting": 0.2, "idle": 0.3}, Kind.LEARNER, "learner.data_parallel 1 -> 2"),
        ({"training": 0.2, "waiting": 0.8, "idle": 0.3, "evaluating": 0.5}, Kind.EVALUATION, "evaluation.every 10 -> 20"),
    ],
)
def test_the_largest_share_names_it(shares, kind, key):
    bottleneck = found(**shares)
    assert bottleneck.kind == kind
    assert bottleneck.sentence.startswith(f"{kind}-bound: in the last 20 training steps ")
    assert key in bottleneck.sentence
    assert bottleneck.factor is not None
    assert f"would bring about {bottleneck.factor:.1f}x" in bottleneck.sentence


def test_a_larger_batch_is_foreseen_to_divide_all_that_a_training_step_costs_whatever_its_batch():
    assert found(training=0.4, publishing=0.6, idle=0.9).factor == pytest.approx(1 / 0.7)
    assert found(training=0.4, optimizer=0.3, publishing=0.6, idle=0.9).factor == pytest.approx(1 / 0.55)
    # Of twice the training, what fits beside the delivery of the version before takes no time of its own.
    slow_cable = {"training": 0.38, "optimizer": 0.03, "publishing": 0.58, "delivering": 0.58, "waiting": 0.04, "idle": 0.77}
    assert found(**slow_cable).factor == pytest.approx(2 / (2 * 0.04 + 0.03 + 2 * 0.35 + (0.58 - 0.35)))
    busy_engines = found(training=0.4, optimizer=0.3, publishing=0.6, idle=0.3)
    assert busy_engines.factor == pytest.approx(1 / 0.7), "they play no more episodes than they do"


def test_engines_that_could_play_more_at_once_are_told_to_before_more_engines_are():
    busy = made_time(training=0.4, waiting=0.6, idle=0.02, tools=0.4)
    few = compose("quickstart", ["generators.count=1", "generators.max_running=16", "buffer.pipeline_depth=1"])
    assert "generators.max_running 16 -> 32 would bring about 1.4x" in find_bottleneck(busy, few, 1, 20).sentence
    all_of_them = compose("quickstart", ["generators.count=1", "generators.max_running=256", "buffer.pipeline_depth=1"])
    assert "generators.count 1 -> 2" in find_bottleneck(busy, all_of_them, 1, 20).sentence
    roomy = made_time(training=0.4, waiting=0.6, idle=0.02, tools=0.4, held_back=0.5)
    assert "generators.count 1 -> 2" in find_bottleneck(roomy, few, 1, 20).sentence, "they have room, but no tickets"


def test_the_advice_begins_at_the_present_size_of_a_pool_that_was_scaled():
    busy = made_time(training=0.4, waiting=0.6, idle=0.02, tools=0.4)
    recipe = compose("quickstart", ["generators.count=1", "generators.max_running=256", "generators.pools={small: {count: 2}}"])
    now = msgspec.structs.replace(recipe, generators=recipe.generators.resized({"generators": 3, "small": 1}))
    assert now.generators.engines == 4
    assert "generators.count 3 -> 4" in find_bottleneck(busy, now, 1, 20).sentence


def test_one_more_engine_is_foreseen_to_bring_its_share_of_the_engines_of_all_pools():
    busy = made_time(training=0.4, waiting=0.6)
    pools = "generators.pools={small: {count: 3}, evaluation: {count: 9, role: evaluation}}"
    recipe = compose("quickstart", ["generators.count=1", "generators.max_running=256", "generators.role=train", pools])
    bottleneck = find_bottleneck(busy, recipe, 1, 20)
    assert "generators.count 1 -> 2" in bottleneck.sentence
    assert bottleneck.factor == pytest.approx(1 / (0.4 + 0.6 * 4 / 5)), "four engines become five"


def test_a_factor_is_amdahl_s_and_no_more_than_the_other_side_gives():
    assert found(training=1.0, idle=0.9).factor == pytest.approx(2.0)
    assert found(training=1.0, idle=0.375).factor == pytest.approx(1.6)
    assert found(training=0.8, waiting=0.2, idle=0.9).factor == pytest.approx(1 / (0.2 + 0.4))
    assert found(training=0.1, waiting=0.9, idle=0.9, tools=1.0).factor == pytest.approx(1 / 0.55)
    assert found(training=0.45, waiting=0.55, idle=0.9, tools=1.0).factor == pytest.approx(1 / (0.45 + 0.275))
    assert found(training=0.3, publishing=0.65, waiting=0.05, idle=0.9).factor == pytest.approx(1 / (0.35 + 0.325))


def test_the_tool_that_takes_the_most_time_is_named():
    steps = [
        FinishedEpisodes(tools={"search": ToolCounts(calls=10, seconds=30.0), "add": ToolCounts(calls=90, seconds=1.0)}),
        FinishedEpisodes(tools={"add": ToolCounts(calls=90, seconds=9.0)}),
    ]
    shares = made_time(training=0.2, waiting=0.8, idle=0.8, tools=0.95)
    told = find_bottleneck(shares, RECIPE, 1, 20, SlowTool.of(steps)).sentence
    assert "95 % of their own time outside engines (tool search took 75 % of the time of all calls, 3.0 s a call);" in told
    named = "time outside engines (tool search took 75 % of the time of all calls, 3.0 s a call);"
    for kind, others in ((Kind.GENERATION, {"idle": 0.02}), (Kind.STALENESS, {"idle": 0.6, "held_back": 0.9})):
        for tools, is_said in ((0.65, True), (0.45, False)):
            some = made_time(training=0.3, waiting=0.7, tools=tools, **others)
            bottleneck = find_bottleneck(some, RECIPE, 1, 20, SlowTool.of(steps))
            assert bottleneck.kind is kind
            assert (f", and episodes spent 65 % of their own {named}" in bottleneck.sentence) is is_said
    assert SlowTool.of([FinishedEpisodes()]) is None


def test_where_all_cores_are_busy_no_key_helps():
    bottleneck = found(training=1.0, idle=0.5, cores=0.99)
    assert bottleneck.factor is None
    assert "no key helps, because processor cores are busy for 99 % of the time" in bottleneck.sentence
    assert found(training=1.0, idle=0.5, cores=0.6).factor == pytest.approx(0.9 / 0.6)
    assert found(training=0.2, waiting=0.8, idle=0.8, tools=0.99, cores=1.0).factor is not None, "tools may only wait"


def test_where_both_sides_keep_pace_no_key_helps():
    assert "something else would hold the run up next" in found(training=0.97, waiting=0.02, idle=0.03).sentence


HELD_BACK = {"training": 0.4, "waiting": 0.6, "idle": 0.6, "held_back": 0.9}


def test_beyond_the_bound_the_bound_is_what_to_raise():
    fixed = compose("quickstart", ["buffer.max_staleness=4", "buffer.pipeline_depth=4"])
    keys = "buffer.max_staleness and buffer.pipeline_depth 4 -> 5"
    assert keys in find_bottleneck(made_time(**HELD_BACK), fixed, 4, 20).sentence
    moving = compose("quickstart", ["buffer.max_staleness=4", "buffer.pipeline_depth=auto"])
    assert "; buffer.max_staleness 4 -> 5" in find_bottleneck(made_time(**HELD_BACK), moving, 4, 20).sentence


def test_what_the_run_does_itself_is_no_advice():
    moving = compose("quickstart", ["buffer.max_staleness=4", "buffer.pipeline_depth=auto"])
    bottleneck = find_bottleneck(made_time(**HELD_BACK), moving, 2, 20)
    assert bottleneck.sentence.endswith("buffer.pipeline_depth, now 2, grows by itself")
    assert bottleneck.factor is None


def test_a_change_that_the_recipe_would_be_refused_with_is_no_advice():
    few_episodes = compose("quickstart", ["batch.groups_per_step=1", "batch.group_size=3", "learner.data_parallel=2"])
    bottleneck = find_bottleneck(made_time(training=1.0, idle=0.9), few_episodes, 1, 20)
    assert "no key helps" in bottleneck.sentence


def test_more_room_is_no_advice_where_engines_have_room():
    slow = {"training": 0.2, "waiting": 0.8, "idle": 0.0, "tools": 1.0}
    assert "generators.max_running 64 -> 128" in found(**slow, held_back=0.1).sentence
    assert "buffer.pipeline_depth 1 -> 2" in found(**slow, held_back=0.9).sentence


SLOW_SCORES = {"training": 0.2, "waiting": 0.8, "idle": 0.9, "held_back": 0.9, "scoring": 0.95}


def test_finished_episodes_that_wait_for_their_score_are_no_lack_of_tickets():
    service = ["reward={kind: remote, url: http://localhost:1, requests: 4}"]
    bottleneck = find_bottleneck(made_time(**SLOW_SCORES), compose("quickstart", service), 1, 20)
    assert (bottleneck.kind, bottleneck.share) == (Kind.REWARD, pytest.approx(0.8 * 0.95))
    assert bottleneck.sentence.startswith("reward-bound: ")
    assert "reward.requests 4 -> 8 would bring about" in bottleneck.sentence
    own_model = compose("quickstart", ["reward={kind: model, path: /a/model}", "buffer.pipeline_depth=1"])
    assert "buffer.pipeline_depth 1 -> 2" in find_bottleneck(made_time(**SLOW_SCORES), own_model, 1, 20).sentence


def test_scores_that_come_soon_are_not_what_holds_up():
    assert found(**SLOW_SCORES | {"scoring": 0.2}).kind == Kind.STALENESS


def test_one_step_is_one_training_step():
    assert ": in the last training step the" in find_bottleneck(made_time(training=1.0), RECIPE, 1, 1).sentence
