"""The ScanNet server and others: what they have, and how to fetch it. Nothing else here touches the network."""
