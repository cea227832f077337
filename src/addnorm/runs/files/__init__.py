"""The files of a run folder: names, formats, digests, lock."""
