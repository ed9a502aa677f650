"""The model of a run: engines, episodes, learner and publications in simulated time, around the production code."""
