"""Training over several processes: rows and weights split among them, results as of one."""
