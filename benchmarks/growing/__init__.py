"""Growth, a family for each file: the same piece of work when there is once, ten times and a
hundred times as much of it.
"""
