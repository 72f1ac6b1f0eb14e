"""Networks of nodes on any machines, over NATS: `ergo_py.network.NATS`."""
