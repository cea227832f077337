"""The engine: pages of the key/value cache, the schedule of requests, and the steps of a model."""
