"""Reports of several domains: each file is a whole team, with its agents, its sample data and a request."""
