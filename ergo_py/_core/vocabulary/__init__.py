"""Identifiers, messages, errors, exit reasons, states and options: values that all other packages
use.
"""
