"""Turns the sizes of a run while it trains: its journal of moves, what moves are made by, and who asks for plans."""
