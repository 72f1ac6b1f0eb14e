"""Worlds that check the promises of networks, clusters and entities: `python -m benchmarks worlds`
explores many seeds, and the tests a few.
"""
