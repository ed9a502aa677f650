"""Commands for those who write environments and agents."""
