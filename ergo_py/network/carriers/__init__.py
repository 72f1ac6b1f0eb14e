"""Carriers: they carry the frames of sessions between nodes."""
