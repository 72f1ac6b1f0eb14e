"""Identifiers, messages, errors, exit reasons, states and options: values that every other room
uses.
"""
