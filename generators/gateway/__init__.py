"""The gateway: other people's agents talk to the policy in their own protocol, and each token is kept as it was sampled."""
