"""The hand-in: each course's problems in its order, tables in its own shape, short answers; made of a site's tables."""
