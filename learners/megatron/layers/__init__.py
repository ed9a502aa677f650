"""The layers of the model for packed rows: attention, experts, adapters, log-probabilities."""
