"""The bench of the webhook: real reviews over TLS at a steady rate."""
