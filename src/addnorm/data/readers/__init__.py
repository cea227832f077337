"""Files, tables and Python values read as examples."""
