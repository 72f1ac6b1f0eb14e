"""Services of supervised children for other nodes, at both ends."""
