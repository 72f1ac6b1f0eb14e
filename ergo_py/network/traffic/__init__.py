"""Accounts of the operations and bytes between nodes."""
