"""Thin Ray actors around the plain classes: they add waiting, transport and a place to run, and no logic of their own."""
