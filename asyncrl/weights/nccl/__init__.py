"""The ``nccl`` transport: broadcasts from the learner's GPUs to the engines' GPUs."""
