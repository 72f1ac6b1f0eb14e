"""Completion of ``ergo`` in bash, zsh and fish."""
