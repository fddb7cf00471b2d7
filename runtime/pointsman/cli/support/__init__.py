"""The session with the broker, the checks of doctor, ids, teams, and the processes of a local system."""
