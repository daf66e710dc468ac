"""The same forward passes by the host clock of three experiments: how steady the host was between them."""
