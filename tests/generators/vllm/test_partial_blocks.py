"""Turns go on in half-filled blocks of vLLM's own cache manager; what each block holds is written down by hand."""

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus

from generators.vllm.partial_blocks import PartialBlocks

BLOCK = 4
HASH = "sha256"
PROMPTS = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7], [1, 2]]
Prefix = tuple[str, tuple[int, ...]]


class Engine:
    """vLLM's cache manager with what a worker would write: ``memory[block][place]`` is all that a key was computed from."""

    def __init__(self, blocks: int) -> None:
        function = get_hash_fn_by_name(HASH)
        init_none_hash(function)
        self._hasher = get_request_block_hasher(BLOCK, function)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
        config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        self.cache = KVCacheManager(config, max_model_len=64, scheduler_block_size=BLOCK, hash_block_size=BLOCK)
        settings = SimpleNamespace(cache_config=SimpleNamespace(prefix_caching_hash_algo=HASH))
        PartialBlocks.install(SimpleNamespace(kv_cache_manager=self.cache, vllm_config=settings))
        self.memory: list[list[Prefix | None]] = [[None] * BLOCK for _ in range(blocks)]
        self.running: dict[str, Request] = {}
        self._numbers = 0

    def begin(self, tokens: list[int], salt: str, computed: int | None = None) -> Request:
        """A request that no step has looked at yet."""
        self._numbers += 1
        session = None if computed is None else str(computed)
        params = SamplingParams(max_tokens=64)
        name = str(self._numbers)
        return Request(
            name, list(tokens), params, None, cache_salt=salt, block_hasher=self._hasher, session_id=session, arrival_time=0.0
        )

    def admit(self, request: Request) -> int | None:
        """Compute all tokens of a request, as a step does; returns how many were cached, or None if there is no room."""
        blocks, cached, _ = self.cache.get_computed_blocks(request)
        new = request.num_tokens - cached
        if self.cache.allocate_slots(request, new, cached, blocks) is None:
            return None
        request.num_computed_tokens = cached
        self.running[request.request_id] = request
        request.status = RequestStatus.RUNNING
        self.check()
        self.write(request)
        return cached

    def sample(self, request: Request, token: int) -> bool:
        """Append a sampled token, and compute the one before it; whether there was room."""
        if request.num_computed_tokens < request.num_tokens:
            if self.cache.allocate_slots(request, 1) is None:
                return False
            self.write(request)
        request.append_output_token_ids(token)
        return True

    def write(self, request: Request) -> None:
        (ids,) = self.cache.get_block_ids(request.request_id)
        for place in range(request.num_computed_tokens, request.num_tokens):
            tokens = tuple(request.all_token_ids[: place + 1])
            self.memory[ids[place // BLOCK]][place % BLOCK] = (str(request.cache_salt), tokens)
        request.num_computed_tokens = request.num_tokens
        self.check()

    def end(self, request: Request, status: RequestStatus) -> None:
        del self.running[request.request_id]
        request.status = status
        self.cache.free(request)

    def check(self) -> None:
        """Every request finds all its keys, each computed from its own tokens with its own weights."""
        for request in self.running.values():
            (ids,) = self.cache.get_block_ids(request.request_id)
            for place in range(request.num_computed_tokens):
                tokens = tuple(request.all_token_ids[: place + 1])
                assert self.memory[ids[place // BLOCK]][place % BLOCK] == (request.cache_salt, tokens)


class Conversation:
    """One conversation, which has a turn under way or waits for its next one."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.computed = list(tokens), None
        self.turn: Request | None = None


ACTIONS = st.sampled_from(["begin", "begin", "sample", "sample", "sample", "end", "cancel", "preempt", "forget", "publish"])
STEPS = st.lists(st.tuples(ACTIONS, st.integers(0, 5), st.integers(8, 9)), min_size=1, max_size=80)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(5, 24))
def test_every_request_computes_with_the_keys_of_its_own_tokens_and_weights(steps, blocks) -> None:
    engine, version = Engine(blocks), 0
    conversations = [Conversation(PROMPTS[number % len(PROMPTS)]) for number in range(6)]
    for action, number, token in steps:
        conversation, turn = conversations[number], conversations[number].turn
        if action == "publish":
            version += 1
        elif action == "forget" and turn is None:
            conversations[number] = Conversation(PROMPTS[number % len(PROMPTS)])
        elif action == "begin" and turn is None and len(conversation.tokens) < 40:
            request = engine.begin(conversation.tokens, str(version), conversation.computed)
            if engine.admit(request) is not None:
                conversation.turn = request
                assert engine.sample(request, token)
        elif turn is None:
            continue
        elif action == "sample" and turn.num_tokens < 48:
            engine.sample(turn, token)
        elif action == "preempt":
            engine.end(turn, RequestStatus.PREEMPTED)
            turn.num_computed_tokens = 0
            if engine.admit(turn) is None:
                conversation.turn = None
        elif action in ("end", "cancel"):
            engine.end(turn, RequestStatus.FINISHED_STOPPED if action == "end" else RequestStatus.FINISHED_ABORTED)
            conversation.computed = len(turn.all_token_ids) - 1
            conversation.tokens = [*turn.all_token_ids, 10 + number, 10]
            conversation.turn = None


def turn(engine: Engine, request: Request, sampled: list[int]) -> int:
    cached = engine.admit(request)
    assert cached is not None
    for token in sampled:
        assert engine.sample(request, token)
    engine.end(request, RequestStatus.FINISHED_STOPPED)
    return cached


def test_a_turn_begins_where_the_turn_before_it_ended() -> None:
    engine = Engine(32)
    tokens = [*PROMPTS[0], 8, 9, 8, 9, 8]
    assert turn(engine, engine.begin(PROMPTS[0], "0"), tokens[6:]) == 0
    following = [*tokens, 10, 11]
    assert turn(engine, engine.begin(following, "0", len(tokens) - 1), [8]) == len(tokens) - 1
    assert turn(engine, engine.begin([*following, 8, 10], "0", len(following)), [9]) == len(following)


def test_only_the_same_conversation_with_the_same_weights_goes_on_in_a_half_filled_block() -> None:
    engine = Engine(32)
    tokens = [*PROMPTS[0], 8, 9, 8, 9, 8]
    turn(engine, engine.begin(PROMPTS[0], "0"), tokens[6:])
    following, computed = [*tokens, 10, 11], len(tokens) - 1
    assert turn(engine, engine.begin(following, "1", computed), [8]) == 0, "other weights"
    assert turn(engine, engine.begin([*tokens[:-2], 7, 7, 10], "0", computed), [8]) == 8, "other tokens"
    assert turn(engine, engine.begin(following, "0"), [8]) == 8, "a request that does not say what it follows"
    turn(engine, engine.begin(PROMPTS[2], "0"), [8])
    short = [*PROMPTS[2], 8, 10]
    assert turn(engine, engine.begin(short, "1", 2), [8]) == 0, "other weights, before the first block is full"
    assert turn(engine, engine.begin(short, "0", 2), [8]) == 2


def test_a_block_in_which_one_request_goes_on_is_not_given_to_another() -> None:
    engine = Engine(32)
    tokens = [*PROMPTS[0], 8, 9, 8, 9]
    turn(engine, engine.begin(PROMPTS[0], "0"), tokens[6:])
    computed = len(tokens) - 1
    assert engine.admit(engine.begin([*tokens, 10], "0", computed)) == computed
    assert engine.admit(engine.begin([*tokens, 11], "0", computed)) == 8
