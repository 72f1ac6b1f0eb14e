"""The code that uses trio's internals, OS threads and OS resources."""
