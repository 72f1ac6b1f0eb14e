"""Delivery: the router, calls, the clock of deadlines, publish/subscribe."""
