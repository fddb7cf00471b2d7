"""Reports of several domains. Each file is a whole team, with its agents, its sample data and a request."""
