"""Write the output of commands for terminals, files and programs."""
