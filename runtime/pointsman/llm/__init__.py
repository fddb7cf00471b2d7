"""Call models through one port: an adapter for each provider's API, the offline model, and the prompt of a task."""
