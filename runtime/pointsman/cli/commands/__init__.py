"""The commands. Each command or group of related commands has a module."""
