"""The stores of a network: small tables that all its nodes share, with compare-and-set."""
