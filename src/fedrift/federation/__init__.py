"""Real federations: the same algorithms with data that stay at their sites."""
