"""What the ScanNet v2 release is: scene ids, splits, files, label sets, and known oddities."""
