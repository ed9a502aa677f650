"""Publications on their way from the learner's ranks to the engines, one class for each transport."""
