"""Tables of the subjects: a user's code next to ours."""
