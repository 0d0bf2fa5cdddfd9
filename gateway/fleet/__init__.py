"""Replicas behind the gateway: where they are, how they are, and the transport to them."""
