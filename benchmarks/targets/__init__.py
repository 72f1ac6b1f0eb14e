"""The decoders that `benchmarks.fuzzing` feeds, a module for each part of the package."""
