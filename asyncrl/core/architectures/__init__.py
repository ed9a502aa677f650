"""The models that can be trained: what their tensors are, and for each architecture what its folders look like."""
