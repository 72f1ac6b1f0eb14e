"""The sources and sinks for brokers, each on the library that its users use."""
