"""Words every other package shares: ids, requests, parameters, configuration, events, errors."""
