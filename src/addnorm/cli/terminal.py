"""The console for messages: standard error, so that standard output can be piped."""

from rich.console import Console

console = Console(stderr=True, highlight=False)
