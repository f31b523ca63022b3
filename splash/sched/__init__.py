"""When, to what, and in which steps: batches, transitions and the plan of every step."""
