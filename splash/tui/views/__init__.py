"""Panels: plain functions from a snapshot and a size to lines that fit it exactly."""
