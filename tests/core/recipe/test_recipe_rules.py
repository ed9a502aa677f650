from typing import Any

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.decode import decode_recipe

RECIPE = {"name": "x", "steps": 3, "model": {"path": "tiny"}, "environment": {"name": "calculator"}}
EVALUATING = {"evaluation": {"count": 1, "role": "evaluation"}}
ONE_FILE = [{"path": "a.jsonl"}]
UNCORRECTED = {"algorithm": {"correction": {"anchor": "proximal_recomputed", "weight": "none"}}}
ON_TWO_NODES = {"tensor_parallel": 2, "engine_nodes": 2}
SYNCHRONOUS = {"max_staleness": 0, "pipeline_depth": 0}
ALONE = {"batch": {"group_size": 1}, "algorithm": {"advantage": {"kind": "reinforce_plus_plus"}}}


@pytest.mark.parametrize(
    ("sections", "place", "remedy"),
    [
        (UNCORRECTED, "algorithm.correction.weight", "buffer.max_staleness"),
        ({"buffer": {"max_staleness": 2, "pipeline_depth": 3}}, "buffer.pipeline_depth", "at most 2"),
        ({"buffer": {"max_staleness": 0, "pipeline_depth": 1}}, "buffer.pipeline_depth", "at most 0"),
        ({"sampling": {"max_turn_tokens": 512}}, "sampling.max_turn_tokens", "below 512"),
        ({"evaluation": {"temperature": 0.005}}, "evaluation.temperature", "0 (greedy), or to at least 0.01"),
        ({"learner": {"micro_batch_tokens": 511}}, "learner.micro_batch_tokens", "at least 512"),
        ({"batch": {"group_size": 65}}, "batch.group_size", "at most 64"),
        ({"generators": {"max_running": 1}}, "batch.group_size", "set generators.max_running to at least 8"),
        ({"generators": {"tensor_parallel": 3, "engine_nodes": 2}}, "generators.engine_nodes", "divides 3"),
        ({"generators": {**ON_TWO_NODES, "data_parallel": 2}}, "generators.engine_nodes", "generators.data_parallel to 1"),
        ({"generators": ON_TWO_NODES, "network": {"tls": {"kind": "run"}}}, "generators.engine_nodes", "network.tls out"),
        ({"batch": {"group_size": 1}}, "batch.group_size", "at least 2"),
        (
            {"batch": {"group_size": 1}, "algorithm": {"advantage": {"kind": "reinforce_plus_plus", "baseline": "group"}}},
            "batch.group_size",
            "at least 2",
        ),
        (
            {"batch": {"groups_per_step": 3, "group_size": 2}, "learner": {"data_parallel": 7}},
            "learner.data_parallel",
            "at most 6, or batch.groups_per_step to at least 4",
        ),
        (
            {"batch": {"groups_per_step": 5, "group_size": 2}, "algorithm": {"minibatches": 4}, "learner": {"data_parallel": 3}},
            "learner.data_parallel",
            "at most 2, or batch.groups_per_step to at least 8",
        ),
        (
            {
                "batch": {"groups_per_step": 1, "group_size": 2},
                "algorithm": {"advantage": {"kind": "remax"}},
                "learner": {"data_parallel": 2},
            },
            "learner.data_parallel",
            "at most 1, or batch.groups_per_step to at least 2",
        ),
        ({"learner": {"virtual_pipeline": 2}}, "learner.virtual_pipeline", "learner.pipeline_parallel to at least 2"),
        ({"learner": {"fp8": "hybrid"}}, "learner.fp8", "learner.dtype to bfloat16"),
        ({"learner": {"expert_parallel": 2}}, "learner.expert_parallel", "divisor of 1"),
        (
            {"learner": {"tensor_parallel": 2, "data_parallel": 3, "pipeline_parallel": 2, "expert_parallel": 4}},
            "learner.expert_parallel",
            "divisor of 6",
        ),
        ({"learner": {"warmup_steps": 4}}, "learner.warmup_steps", "at most 3"),
        ({"tasks": {"kind": "files", "train": ONE_FILE, "evaluation": ONE_FILE}}, "tasks.evaluation[0].path", "held-out"),
        (
            {"tasks": {"kind": "files", "train": ONE_FILE, "evaluation": [{"path": "b.jsonl"}], "curriculum": {"name": "a:B"}}},
            "tasks.curriculum",
            "a second source",
        ),
        (
            {
                "environment": {"kind": "mixed", "members": {"a": {"name": "calculator"}}},
                "tasks": {"curriculum": {"name": "a:B"}},
            },
            "tasks.curriculum",
            "a second source",
        ),
        ({"environment": {"name": "x", "tool_timeout_s": 301}}, "environment.tool_timeout_s", "at most 300"),
        (
            {"environment": {"name": "x", "episode_timeout_s": 1.2806264120014}},
            "environment.tool_timeout_s",
            "at most 1.2806264120014",
        ),
        ({"environment": {"kind": "agent"}}, "environment.command", "either environment.command or environment.function"),
        ({"environment": {"kind": "agent", "command": ["a"], "function": "a:b"}}, "environment.command", "set either"),
        ({"environment": {"kind": "agent", "function": "a.py"}}, "environment.function", "`module:function`"),
        (
            {"environment": {"kind": "agent", "function": "a:b", "sandbox": {"backend": "auto"}}},
            "environment.sandbox",
            "start the agent by environment.command",
        ),
        (
            {"environment": {"kind": "agent", "command": ["a"], "gateway": "node", "sandbox": {"backend": "auto"}}},
            "environment.sandbox",
            "take out environment.gateway, or the sandbox",
        ),
        ({"deadlines": {"batch": 299}}, "deadlines.batch", "at least 300"),
        ({"batch": {"group_size": 4, "min_group": 5}}, "batch.min_group", "at most 4"),
        ({"batch": {"group_size": 4, "min_group": 1}}, "batch.min_group", "at least 2, or leave it out"),
        (
            {"batch": {"group_size": 6, "min_group": 4}, "algorithm": {"advantage": {"kind": "pass_at_k", "k": 4}}},
            "batch.min_group",
            "at least 5, or leave it out",
        ),
        ({"buffer": {"filters": [{"kind": "accuracy_window", "low": 2}]}}, "buffer.filters[0].low", "at most 1"),
        (
            {"buffer": {"filters": [{"kind": "accuracy_window", "low": 2, "high": 1.23456789}]}},
            "buffer.filters[0].low",
            "at most 1.23456789",
        ),
        (
            {"buffer": {"filters": [{"kind": "accuracy_window", "high": 0.3}, {"kind": "accuracy_window", "low": 0.5}]}},
            "buffer.filters[1].low",
            "at most 0.3, or buffer.filters[0].high to at least 0.5",
        ),
        ({**ALONE, "buffer": {"filters": [{"kind": "zero_variance"}]}}, "buffer.filters[0]", "batch.group_size to at least 2"),
        ({"buffer": {"max_staleness": 4, "max_reuse": 6}}, "buffer.max_reuse", "at most 5"),
        ({"buffer": {"on_stale": "wait", "sampler": {"kind": "prioritised"}}}, "buffer.sampler.kind", "on_stale to mask"),
        ({"buffer": {**SYNCHRONOUS, "on_stale": "wait"}}, "buffer.on_stale", "at least 1"),
        ({"buffer": {**SYNCHRONOUS, "on_stale": "drop"}}, "buffer.on_stale", "leave it out"),
        ({"deadlines": {"evaluation": 299}}, "deadlines.evaluation", "at least 300"),
        ({"tune": {"knobs": {}}}, "tune.knobs", "buffer.pipeline_depth, generators.max_running"),
        ({"tune": {"knobs": {"generators.pools.b.count": [1, 2]}}}, "tune.knobs[generators.pools.b.count]", "add it there"),
        ({"tune": {"knobs": {"generators.counts": [1, 2]}}}, "tune.knobs[generators.counts]", "some of generators.count"),
        ({"tune": {"knobs": {"batch.groups_per_step": [8, 32]}}}, "tune.knobs[batch.groups_per_step]", "asyncrl sweep"),
        ({"tune": {"knobs": {"learner.lr": [1, 2]}}}, "tune.knobs[learner.lr]", "leave it out"),
        ({"tune": {"knobs": {"learner.data_parallel": [1, 2]}}}, "tune.knobs[learner.data_parallel]", "asyncrl sweep"),
        ({"tune": {"knobs": {"buffer.max_staleness": [1, 4]}}}, "tune.knobs[buffer.max_staleness]", "buffer.pipeline_depth"),
        ({"tune": {"knobs": {"generators.count": [3, 8]}}}, "tune.knobs[generators.count]", "widen the bounds"),
        ({"tune": {"knobs": {"generators.count": [2, 2]}}}, "tune.knobs[generators.count]", "leave the knob out"),
        ({"tune": {"knobs": {"buffer.pipeline_depth": [1, 5]}}}, "tune.knobs[buffer.pipeline_depth]", "at most 4"),
        ({"tune": {"knobs": {"generators.max_running": [4, 64]}}}, "tune.knobs[generators.max_running]", "at least 8"),
        (
            {"tune": {"knobs": {"generators.count": [1, 4]}}, "tracking": {"trajectories": {"keep": "none"}}},
            "tracking.trajectories.keep",
            "sample or all",
        ),
        (
            {
                "tune": {"knobs": {"generators.pools.evaluation.count": [1, 2]}},
                "generators": {"role": "train", "pools": EVALUATING},
            },
            "tune.knobs[generators.pools.evaluation.count]",
            "leave it out",
        ),
        ({"generators": {"role": "train"}}, "generators.role", "set it to both, or add a pool of role evaluation"),
        ({"generators": {"role": "train", "pools": {"b": {"count": 1}}}}, "generators.role", "evaluation or both"),
        ({"generators": {"role": "evaluation", "pools": EVALUATING}}, "generators.role", "train or both"),
        ({"buffer": {"shards": 1_000_000_000}}, "buffer.shards", "no more than 4,096"),
        ({"learner": {"context_parallel": 64, "tensor_parallel": 65}}, "learner.tensor_parallel", "no more than 4,096"),
        ({"generators": {"count": 2, "tensor_parallel": 2049}}, "generators.count", "no more than 4,096"),
        ({"generators": {"pools": {"b": {"count": 4097}}}}, "generators.pools.b.count", "no more than 4,096"),
        (
            {"algorithm": {"teacher": {"path": "x", "engines": 4097}}},
            "algorithm.teacher.engines",
            "no more than 4,096",
        ),
        ({"generators": {"pools": {"learner": {"count": 1}}}}, "generators.pools.learner", "another one"),
        (
            {"generators": {"pools": {"b": {"count": 1, "max_running": 4}}}},
            "batch.group_size",
            "pools.b.max_running to at least 8",
        ),
        ({"generators": {"updates": "at_episode"}}, "generators.updates", "train adapters and publish them alone"),
        (
            {"generators": {"updates": "at_episode"}, "learner": {"lora": {}}},
            "generators.updates",
            "publish adapters alone (learner.lora.publish=adapter)",
        ),
        ({"learner": {"lora": {"rank": 513, "publish": "adapter"}}}, "learner.lora.rank", "publish to merged"),
        ({"learner": {"placement": {"resources": {"GPU": 1}}}}, "learner.placement.resources.GPU", "set learner.gpu"),
        (
            {"generators": {"placement": {"resources": {"GPU": 1}}}},
            "generators.placement.resources.GPU",
            "set tensor_parallel and data_parallel",
        ),
        ({"learner": {"tensor_parallel": 2, "placement": {"per_node": 3}}}, "learner.placement.per_node", "multiple of 2, or"),
    ],
)
def test_a_contradiction_is_refused_with_a_remedy(sections: dict[str, Any], place: str, remedy: str):
    with pytest.raises(RecipeError) as caught:
        decode_recipe({**RECIPE, **sections})
    assert caught.value.place == place
    assert remedy in caught.value.remedy
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize(
    "sections",
    [
        {**UNCORRECTED, "buffer": SYNCHRONOUS},
        {"buffer": {"max_staleness": 0}},
        {"batch": {"groups_per_step": 1}, "learner": {"data_parallel": 8}},
        {"buffer": {"max_staleness": 1, "pipeline_depth": 1, "on_stale": "wait"}},
        {"sampling": {"max_turn_tokens": 511}},
        {"sampling": {"temperature": 0.01}, "evaluation": {"temperature": 0.01}},
        {"sampling": {"temperature": 2.0}, "evaluation": {"temperature": 2}},
        {"learner": {"micro_batch_tokens": 512}},
        {"batch": {"group_size": 64}},
        {"batch": {"group_size": 1}, "algorithm": {"advantage": {"kind": "none"}, "teacher": {"path": "teacher"}}},
        {"batch": {"group_size": 1}, "algorithm": {"advantage": {"kind": "gae"}}},
        {"batch": {"groups_per_step": 4}, "learner": {"data_parallel": 4}},
        {"learner": {"virtual_pipeline": 2, "pipeline_parallel": 2}},
        {"learner": {"fp8": "hybrid", "dtype": "bfloat16", "tensor_parallel": 2}},
        {"learner": {"context_parallel": 2, "tensor_parallel": 3, "expert_parallel": 2, "expert_tensor_parallel": 3}},
        {"learner": {"warmup_steps": 3}},
        {"batch": {"group_size": 4, "min_group": 4}},
        {"batch": {"group_size": 4, "min_group": 1}, "algorithm": {"advantage": {"kind": "gae"}}},
        {"batch": {"group_size": 6, "min_group": 5}, "algorithm": {"advantage": {"kind": "pass_at_k", "k": 4}}},
        {"buffer": {"filters": [{"kind": "accuracy_window", "low": 0.5, "high": 0.5}]}},
        {"buffer": {"max_staleness": 4, "max_reuse": 5}},
        {"environment": {"name": "x", "tool_timeout_s": 300}},
        {"deadlines": {"batch": 300, "evaluation": 300}},
    ],
)
def test_the_limit_itself_is_allowed(sections: dict[str, Any]):
    decode_recipe({**RECIPE, **sections})


def test_all_broken_rules_are_told_at_once():
    with pytest.raises(RecipeError) as caught:
        decode_recipe({**RECIPE, "learner": {"warmup_steps": 4, "micro_batch_tokens": 1}})
    assert len(caught.value.__notes__) == 1


def test_a_pool_has_the_keys_of_generators_but_for_its_own():
    own = {"count": 1, "role": "evaluation", "engine": {"max_num_batched_tokens": 1}, "placement": {"gpu_kind": "L4"}}
    generators = {"count": 3, "dtype": "float32", "engine": {"block_size": 16}, "pools": {"evaluation": own}}
    config = decode_recipe({**RECIPE, "generators": generators}).generators
    main, further = config.by_pool.values()
    assert (config.engines, list(config.training)) == (4, ["generators"])
    assert (main.count, further.count, further.dtype) == (3, 1, "float32")
    assert further.engine == {"block_size": 16, "max_num_batched_tokens": 1}
    assert (main.placement.gpu_kind, further.placement.gpu_kind) == (None, "L4")
    assert not further.pools
