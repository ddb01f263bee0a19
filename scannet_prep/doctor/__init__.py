"""Checks of the machine, the folders, the server and the GPUs, and of the ranks of a job.

probes    each check
threads   the checks that may hang, each in a thread
ranks     the comparison of all ranks of a job
"""
