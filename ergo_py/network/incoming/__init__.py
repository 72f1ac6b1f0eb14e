"""The frames and operations of another node, and how this node carries them out."""
