"""The parts of a decoder layer that stay in their place in all layouts."""
