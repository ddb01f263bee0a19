"""The command line: one module a command, which parses, calls one stage and prints."""
