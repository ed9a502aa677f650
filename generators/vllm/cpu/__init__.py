"""What an engine of vLLM needs on a CPU only."""
