"""The log: a SQLite file that heals by itself."""
