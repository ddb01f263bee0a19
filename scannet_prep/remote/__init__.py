"""Access to servers and buckets. Only this package uses the network."""
