"""Facts of the ScanNet v2 release: scene ids, splits, files, label sets, and known oddities."""
