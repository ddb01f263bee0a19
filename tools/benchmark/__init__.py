"""Benchmark of speed and memory on synthetic scenes, with one module per part; run by tools/bench.

The machine may be busy with other work. So programs that are compared are measured alternately in
one run, CPU time counts where it can, and the ratios count.
"""
