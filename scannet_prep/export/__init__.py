"""The way to other programs of the field: one module a program, the only places that know foreign names."""
