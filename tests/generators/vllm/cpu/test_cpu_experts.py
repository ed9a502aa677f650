"""Workers on a CPU that share out the experts of a layer."""

import torch

from asyncrl.generators.vllm.cpu.experts import only_own_experts

EXPERTS, CHOSEN, TOKENS = 6, 3, 50


def test_the_workers_together_count_each_chosen_expert_once():
    """Whichever worker has it, and with the weight that the router gave it."""
    torch.manual_seed(0)
    weights = torch.rand(TOKENS, CHOSEN)
    ids = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(TOKENS)]).int()
    counted = torch.zeros(TOKENS, EXPERTS)
    for held in ([0, 1, 2], [3, 5], [4]):
        expert_map = torch.full((EXPERTS,), -1, dtype=torch.int32)
        expert_map[held] = torch.arange(len(held), dtype=torch.int32)
        own_weights, own_ids = only_own_experts(weights, ids, expert_map)
        assert own_ids.dtype == ids.dtype
        assert set(own_ids.unique().tolist()) <= set(range(len(held))), "the kernel would read beyond what the worker has"
        counted.scatter_add_(1, torch.tensor(held)[own_ids.long()], own_weights)
    assert torch.equal(counted, torch.zeros(TOKENS, EXPERTS).scatter(1, ids.long(), weights))
