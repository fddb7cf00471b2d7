"""Teams that write reports, each for one domain. Each file has a team, its agents, its sample data and a request."""
