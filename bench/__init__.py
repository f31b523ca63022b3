"""Measurements: run on an idle machine, never timed in tests."""
