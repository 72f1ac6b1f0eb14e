"""The command ``ergo entities``."""
