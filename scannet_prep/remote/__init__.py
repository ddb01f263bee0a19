"""The ScanNet server: what it has, and how to fetch it. The only part of the program that touches the network."""
