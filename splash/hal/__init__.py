"""What a device must offer to be a port: a small contract, its registry and its conformance suite."""
