"""The ScanNet v2 release as it lies on disk: one module for each kind of file."""
