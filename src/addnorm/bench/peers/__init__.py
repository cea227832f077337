"""The peers: how each of the other libraries does a work; one file for each of them."""
