"""Plans of training over many cards: memory, exchanged bytes and time by arithmetic alone."""
