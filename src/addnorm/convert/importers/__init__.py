"""Models of other formats as models of ours."""
