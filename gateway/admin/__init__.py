"""The operator ports: metrics, health, and the admin API."""
