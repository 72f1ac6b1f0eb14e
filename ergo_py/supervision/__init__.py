"""Supervisors: child specifications, restart strategies, pools, and the driver that performs their
decisions.
"""
