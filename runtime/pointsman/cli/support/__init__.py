"""The broker session, the checks of doctor, ids, teams, and the processes of a local system."""
