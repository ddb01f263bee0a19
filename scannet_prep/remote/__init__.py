"""Access to servers and stores. Only this package uses the network."""
