"""Object stores: their addresses, what is read from and written to them, and what is said when they refuse."""
