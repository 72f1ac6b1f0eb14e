"""Data structures of a node, without trio: mailboxes, names, links, events, timers, calls in
flight.
"""
