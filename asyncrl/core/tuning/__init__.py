"""Turning a run's sizes while it trains: how a setting is measured, and the controller that decides. All of it is pure."""
