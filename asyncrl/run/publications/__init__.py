"""Publications on their way from the learner's ranks to the engines, one file for each transport."""
