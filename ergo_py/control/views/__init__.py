"""Bounded views of a running node, read in the thread of its control socket: while the loop is
blocked, too, and without holding it up.
"""
