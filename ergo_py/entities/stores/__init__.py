"""Stores of entities: the contract, and the stores."""
