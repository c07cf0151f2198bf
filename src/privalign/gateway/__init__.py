"""The OpenAI-shaped HTTP gateway: requests in, private answers out, keys, dashboard, metrics."""
