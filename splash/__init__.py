"""splash: an LLM serving engine that changes the parallel layout of attention while requests run."""

__version__ = "0.1.0"
