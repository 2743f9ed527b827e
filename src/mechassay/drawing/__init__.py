"""Circuits as layered graphs, drawn from plain values: edges of a graph, and numbers of them."""
