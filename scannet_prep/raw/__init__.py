"""The ScanNet v2 release on disk: one module for each kind of file."""
