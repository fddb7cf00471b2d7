"""The agents and teams that ship with Pointsman."""
