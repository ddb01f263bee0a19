"""Benchmark of speed and memory on synthetic scenes, with one module per part; run by tools/bench.

The machine may be busy with other work. So programs that are compared are measured alternately in
one run, by CPU time where possible, and only the ratios of their times are meaningful.
"""
