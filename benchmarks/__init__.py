"""How fast it is, as ratios against peers and limits that are measured beside it. Run with ``python
-m benchmarks``.
"""
