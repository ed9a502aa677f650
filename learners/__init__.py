"""The learner: Megatron-core models, losses as pure functions of tensors, packed batches."""
