"""The methods that users call: on a node, in a process, in a meta-process."""
