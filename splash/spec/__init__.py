"""What a model is: one normalised description from every shape of config.json."""
