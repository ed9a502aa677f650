"""What vLLM's sampler computes on a GPU: its Triton kernels, interpreted on a CPU, give the log-probabilities that the learner
compares with its own."""

import os
import subprocess
import sys

import pytest

COMPARE = """
import triton, triton.language
import vllm.triton_utils
# Without a GPU, vLLM has stand-ins in their place that do nothing.
vllm.triton_utils.triton, vllm.triton_utils.tl = triton, triton.language

import torch
from vllm.v1.worker.gpu.sample.gumbel import apply_temperature
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores

REQUESTS, ENTRIES = 5, 9000  # more than the largest block of a kernel
generator = torch.Generator().manual_seed(0)
raw = 4 * torch.randn(REQUESTS, ENTRIES, generator=generator)
raw[1] += 300.0  # exponentials of these overflow
raw[2, 77] = 60.0  # a token whose probability is 1
temperatures = torch.tensor([1.0, 0.7, 1.3, 0.7, 2.0, 0.1])  # of places, of which requests have some, in any order
places = torch.tensor([5, 1, 0, 4, 2], dtype=torch.int32)
sampled = torch.tensor([0, ENTRIES - 1, 77, 8191, 8192])

exact = torch.log_softmax(raw.double() / temperatures[places].double().unsqueeze(1), -1)
logits = raw.clone()
apply_temperature(logits, places, temperatures)
for others in (0, 3):  # asyncrl asks for that of the sampled token alone, which is 0 others
    found = compute_topk_scores(logits, others, sampled)
    assert found.logprobs.shape == (REQUESTS, 1 + others)
    expected = exact.gather(1, found.logprob_token_ids)
    assert found.logprob_token_ids[:, 0].tolist() == sampled.tolist()
    torch.testing.assert_close(found.logprobs.double(), expected, rtol=1e-5, atol=1e-5)
    ranks = (exact >= exact.gather(1, sampled.unsqueeze(1))).sum(1)
    assert found.selected_token_ranks.tolist() == ranks.tolist()
"""


def test_kernels_of_the_sampler_give_log_probabilities_at_each_request_s_temperature(tmp_path):
    pytest.importorskip("triton")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TRITON_INTERPRET": "1",
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", COMPARE], env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
