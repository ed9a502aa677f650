"""Commands about runs: which there are, their labels, watching and stopping them."""
