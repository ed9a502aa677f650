"""How an engine of vLLM loads a publication: which slices, into which parameters, and the proof."""
