"""Operators in C++ for computations that torch does not do at the processor's full speed.

`NAME.cpp` implements the operator `addnorm::NAME`, which Python declares; `build` compiles and
loads it. Nothing here knows of modules.
"""
