"""The commands: a module for each command or group of related commands."""
