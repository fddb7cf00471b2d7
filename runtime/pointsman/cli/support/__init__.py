"""Code that several commands share: the broker session, the checks of `doctor`, ids, teams, and local systems."""
