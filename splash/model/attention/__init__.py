"""Attention in every layout: one pipeline over rows of different classes, and the two families of projections."""
