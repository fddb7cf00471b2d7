"""The session with the broker, ids, teams, and the processes of a local system."""
