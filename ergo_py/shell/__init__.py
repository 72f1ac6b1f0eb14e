"""The command line: runs programs, opens a prompt, and inspects running nodes."""
