"""Entities on the nodes of a cluster: the map of shards, its keeper, and the hosts of the nodes."""
