"""The ScanNet v2 release on disk: where its files lie, and a reader for each kind."""
