"""The verbs of a node and of its handles for synchronous code and for asyncio: tables of rows, each
derived from the method that defines the verb.
"""
