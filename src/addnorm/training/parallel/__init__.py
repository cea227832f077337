"""Training over several processes: rows and weights are split, results are those of one process."""
