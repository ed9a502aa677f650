"""The replay buffer as an actor: its clients, the shards of its payload, its tasks."""
