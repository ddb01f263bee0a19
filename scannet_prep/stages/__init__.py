"""The stages: each is a plan, which touches nothing, a run, and a report."""
