"""The live view: a state that folds events, and plain functions that draw a snapshot of it."""
