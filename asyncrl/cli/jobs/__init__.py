"""``asyncrl launch`` for runs that need nobody."""
