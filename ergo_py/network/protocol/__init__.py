"""The protocol between two nodes, without I/O: sessions, frames and operations."""
