"""Files, standard input and directory watches as meta-processes."""
