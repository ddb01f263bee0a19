"""The stages: each is a run and a report; where there is a dry run, a plan, which touches nothing, comes first."""
