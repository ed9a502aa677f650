"""The learner's state on disk: checkpoints, Hugging Face folders, exports."""
