"""Reading files, tables and Python values as examples."""
