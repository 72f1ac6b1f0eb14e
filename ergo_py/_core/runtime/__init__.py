"""Everything that touches trio's internals, OS threads and OS resources."""
