"""The model on one rank: its weights, and the attention pipeline that computes every layout."""
