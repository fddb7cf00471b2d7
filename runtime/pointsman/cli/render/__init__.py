"""Output of commands for terminals, files and programs."""
