"""The peers: how each of the other libraries runs a benchmark; one file for each of them."""
