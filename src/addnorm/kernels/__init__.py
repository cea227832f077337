"""Operators in C++ for what no library of torch computes at the processor's speed.

`NAME.cpp` implements the operator `addnorm::NAME`, which Python declares; `build` compiles and
loads it. Nothing here knows of modules.
"""
