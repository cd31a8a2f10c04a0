"""Statistics of finished runs: pure functions on what run folders hold, without torch."""
