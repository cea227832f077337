"""Parts shared by all local web servers here: access, limits, errors and event streams."""
