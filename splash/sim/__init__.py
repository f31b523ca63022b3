"""Simulation on a virtual clock: what it is fed with, and what comes out of it."""
