"""Requests to another node itself: who may ask, the answers, and the verbs that ask."""
