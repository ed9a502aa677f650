"""The ``tcp`` transport: weight files that nodes fetch from each other, chunk by chunk."""
