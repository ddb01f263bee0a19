"""Comparison with the preprocessing scripts of other programs: `tools/compare`.

The scripts stay in the clones of whoever runs the comparison. Nothing of them is part of this
repository.

    programs.py    the programs: their commits, how they are called, the names of their arrays
    run.py         one run of a program: exit status, output, time, memory (by launcher.py)
    outputs.py     the arrays that a run wrote, and how they differ from expected ones
    measure.py     time, memory, size and fields, on scenes of usual size
    irregular.py   twelve irregular inputs
    trials.py      what a program does with each of them
    page.py        docs/comparison.md, and its summary in README.md
"""
