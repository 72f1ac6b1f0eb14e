"""Programs of the operating system as meta-processes."""
