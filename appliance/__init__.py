"""Roomscribe: hears a sentence in the room, publishes its text."""

__version__ = "0.1.0"
