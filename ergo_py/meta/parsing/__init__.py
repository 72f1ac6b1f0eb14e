"""Bytes to messages: framings, text lines, and the cutter that applies them."""
