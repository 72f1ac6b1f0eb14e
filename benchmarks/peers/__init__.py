"""One peer a file. A module here with ``ADDS`` joins the workloads by itself, if what it imports is
installed.

``ADDS`` has, for the name of a case, the same work done by somebody else.
"""
