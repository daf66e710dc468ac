"""The pen-and-paper problem of memory and communication of a large model on many devices."""
