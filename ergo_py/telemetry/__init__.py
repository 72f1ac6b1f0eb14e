"""Metrics, health and traces of a node."""
