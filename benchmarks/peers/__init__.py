"""A peer for each file. A module here with ``ADDS`` joins the workloads by itself, if its imports
are installed.

``ADDS`` has, for the name of a case, the same work done by another library.
"""
