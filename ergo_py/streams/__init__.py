"""Streams: events as async iterators, and replies in parts."""
