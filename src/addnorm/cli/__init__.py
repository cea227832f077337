"""The command line: arguments in, one library call, text out."""
