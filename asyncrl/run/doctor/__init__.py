"""``asyncrl doctor``: looks at what a machine has, and says what a run would lack, each finding with its remedy."""
