"""State that gateways share: one face, kept in memory or in Redis. No call ever waits for it."""
