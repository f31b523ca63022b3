"""What the hardware can do: profiles of devices, each number with its provenance."""
