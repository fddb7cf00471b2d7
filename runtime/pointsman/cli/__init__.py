"""The command line of Pointsman.

- `app`: the table of commands. The module of a command is imported when the command is called.
- `arguments`: arguments and options that several commands share.
- `commands`: a module for each command or group of commands, with the declaration and the body.
- `render`: output for terminals, files and programs.
- `support`: the session with the broker, ids, and the processes of a local system.
"""
