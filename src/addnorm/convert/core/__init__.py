"""Shared by all checkpoint families: the family protocol, settings, tensor maps and tasks."""
