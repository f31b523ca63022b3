"""Tests by what they need; helpers that several of them share are imported from here."""
