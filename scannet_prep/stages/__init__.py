"""The commands as functions.

A stage is a function `run` that returns a report. If it has a dry run, a function `plan` comes
first, which writes nothing.
"""
