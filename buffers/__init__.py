"""The versioned replay buffer: tickets, groups, staleness and the exactly-once ledger."""
