"""Measures speed and memory of this package on synthetic scenes: a module for each part, started by tools/bench.

The machine may be busy with other things. So what is compared is measured in turns, in one run, and the ratios count.
"""
