"""Makes a Hugging Face folder of a learner's checkpoint, in one process and without the optimizer.

What always holds: the folder appears whole or not at all, and its weights are those that the learner published as the
checkpoint's version.
"""

import tempfile
from pathlib import Path

import msgspec

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.checkpointing.checkpoint_manifest import Manifest
from asyncrl.learners.megatron import hugging_face, lora, parallel, placement
from asyncrl.learners.megatron.cpu.compat import cuda_means_cpu
from asyncrl.learners.megatron.kernels import kernels_of
from asyncrl.learners.megatron.lora import LowRank
from asyncrl.learners.megatron.model import build
from asyncrl.learners.megatron.model_config import policy_config
from asyncrl.learners.megatron.state import checkpoint
from asyncrl.learners.rank import FileMeeting, RankSpec


def export_checkpoint(source: Path, recipe: Recipe, model_path: Path, folder: Path, threads: int) -> PolicyVersion:
    """Write the policy of the checkpoint at ``source`` to ``folder``, a new Hugging Face folder.

    This process becomes a learner of one rank meanwhile, whatever the layout that wrote the checkpoint. It holds all weights of
    the model.

    Args:
        recipe: the recipe of the run that wrote the checkpoint.
        model_path: the Hugging Face folder that the run began with: the configuration and the tokenizer are copied from there.
        threads: CPU threads that the operators may use.

    Returns:
        The checkpoint's policy version.

    Raises:
        CheckpointDamaged, UnknownClass, CheckpointMismatch: as :func:`asyncrl.learners.megatron.state.checkpoint.load`.
        RecipeError: the folder at ``model_path`` cannot be read.
        FileExistsError: there is something at ``folder``.
    """
    # Neither the layout nor how matrices are multiplied changes what a checkpoint holds.
    plain = dict.fromkeys(("tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel"), 1)
    plain |= dict.fromkeys(("expert_parallel", "expert_tensor_parallel", "virtual_pipeline"), 1)
    learner = msgspec.structs.replace(recipe.learner, **plain, fp8="none", recompute="none")
    with tempfile.TemporaryDirectory() as meeting:
        alone = RankSpec(rank=0, meeting=FileMeeting.make(Path(meeting) / "meeting"), layout=ParallelLayout(), threads=threads)
        parallel.initialise(alone, recipe.deadlines, recipe.seed)
        try:
            config = policy_config(model_path, learner)
            with cuda_means_cpu():
                chunks = build(config, kernels_of(parallel.device(), config.transformer), learner.virtual_pipeline)
                with hugging_face.HuggingFaceTensors(model_path) as tensors:
                    placement.load(chunks, alone, tensors)
                shape = checkpoint.shape_of(config, isinstance(recipe.algorithm.advantage, GaeAdvantageConfig))
                # Whatever the reference policy was, it is no part of the policy.
                reference_weights = Manifest.read(source).shape.reference_weights
                shape = msgspec.structs.replace(shape, reference_weights=reference_weights)
                low_rank = None
                if learner.lora is not None:
                    low_rank = LowRank(chunks, alone, learner.lora, recipe.seed)
                    shape = msgspec.structs.replace(
                        shape, adapters=low_rank.description, frozen_weights=lora.bit_sum(chunks, alone)
                    )
                progress = checkpoint.load_policy(source, chunks, shape)
            shards = placement.shards(chunks, alone)
            hugging_face.save_pretrained(shards if low_rank is None else low_rank.merged(shards), model_path, folder)
        finally:
            parallel.close()
    return progress.version
