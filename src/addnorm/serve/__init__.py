"""Serving: many requests at once, answered by one model; the engine, which no command uses yet."""
