"""The records of a behaviour without a node: its process, its notes, and the verbs that would start
something.
"""
