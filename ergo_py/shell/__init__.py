"""The command line: running programs, a prompt, and looking into running nodes."""
