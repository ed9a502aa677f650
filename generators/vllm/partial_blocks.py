"""Lets a turn go on in the half-filled key-value block in which the turn before it ended, in vLLM's engine process on a CPU.

vLLM finds the keys and values of an earlier turn again in blocks of :data:`generators.vllm.engine_arguments.CPU_BLOCK_TOKENS`
tokens, and only if they are full. So each turn would compute again what of the turn before lies in its last block: 16 tokens on
    average,
often more than the turn has new ones.

What always holds:

* a request only goes on in a block whose keys and values are those of its own tokens, computed with its version of the weights:
  a block is found by vLLM's hash of all tokens before, with the version in it (``cache_salt``);
* a block in which a request goes on belongs to that request alone, and is found by nobody else;
* the memory that blocks wait in is free for whoever needs it: vLLM takes it as it takes that of other cached blocks.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.request import Request

KEEP_PARTIAL_BLOCKS = "keep_partial_blocks"
"""The name under which vLLM's engine process has :func:`keep_partial_blocks` as a method."""


def keep_partial_blocks(core: "EngineCoreProc") -> None:
    """Keep the last blocks of turns from now on, where the engine can. Meant for one call, before the first request."""
    from vllm.platforms import current_platform

    # On a GPU a few tokens cost nothing, and steps that are under way may still write into a block that is free.
    if current_platform.is_cpu():
        PartialBlocks.install(core.scheduler)


class PartialBlocks:
    """The half-filled blocks of one engine's key-value cache. They are kept in vLLM's own table of cached blocks.

    A request says in its ``session_id``, which vLLM hands on without using it, how many of its tokens are of the turn before.
    """

    @classmethod
    def install(cls, scheduler: "Scheduler") -> None:
        """Have a scheduler keep and find them, if all its layers share one kind of cache that keeps every token."""
        from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

        managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        if scheduler.kv_cache_manager.enable_caching and [type(each) for each in managers] == [FullAttentionManager]:
            cls(scheduler)

    def __init__(self, scheduler: "Scheduler") -> None:
        from vllm.utils.hashing import get_hash_fn_by_name

        self._cache = cache = scheduler.kv_cache_manager
        (self._blocks,) = cache.coordinator.single_type_managers
        self._pool = cache.block_pool
        self._hash = get_hash_fn_by_name(scheduler.vllm_config.cache_config.prefix_caching_hash_algo)
        self._find_full, self._free, self._take = cache.get_computed_blocks, cache.free, self._blocks.add_local_computed_blocks
        cache.get_computed_blocks, cache.free, self._blocks.add_local_computed_blocks = self.find, self.free, self.take

    def free(self, request: "Request") -> None:
        """Free the blocks of a request; the last one, if it is half full, can be found from now on."""
        from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

        computed = request.num_computed_tokens
        if request.is_finished() and computed % self._blocks.block_size:
            block = self._blocks.req_to_blocks[request.request_id][computed // self._blocks.block_size]
            found_by = self._hash_of(request, computed)
            if block.block_hash is None and self._pool.get_cached_block(found_by, [0]) is None:
                self._pool._insert_block_hash(make_block_hash_with_group_id(found_by, 0), block, num_tokens=computed)
        self._free(request)

    def find(self, request: "Request") -> "tuple[KVCacheBlocks, int, int]":
        """Return the cached blocks with which a request can begin, and the number of its tokens in them."""
        blocks, cached, boundary = self._find_full(request)
        if request.session_id is None or not cached < (computed := int(request.session_id)) < request.num_tokens:
            return blocks, cached, boundary
        size = self._blocks.block_size
        if cached // size != computed // size:  # not all full blocks before it are cached
            return blocks, cached, boundary
        (block, *_) = self._pool.get_cached_block(self._hash_of(request, computed), [0]) or (None,)
        if block is None:
            return blocks, cached, boundary
        return self._cache.create_kv_cache_blocks(([*blocks.blocks[0], block],)), computed, boundary

    def take(self, request_id: str, blocks: "Sequence[KVCacheBlock]", computed: int, external: int) -> None:
        """Give the blocks that were found to a request.

        vLLM would have the request copy a half-filled block before it writes, because others may find it. Nobody does any more.
        """
        self._take(request_id, blocks, computed, external)
        if self._blocks._partial_hit_reqs.pop(request_id, None) is not None:
            self._pool.evict_blocks({blocks[-1].block_id})

    def _hash_of(self, request: "Request", tokens: int) -> "BlockHash":
        """vLLM's hash of the first ``tokens`` tokens of a request, of which the last ones do not fill their block."""
        from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, hash_block_tokens

        full = tokens // self._blocks.block_size
        begin = full * self._blocks.block_size
        others, _ = generate_block_hash_extra_keys(request, begin, tokens, 0)
        parent = request.block_hashes[full - 1] if full else None
        return hash_block_tokens(self._hash, parent, request.all_token_ids[begin:tokens], others)
