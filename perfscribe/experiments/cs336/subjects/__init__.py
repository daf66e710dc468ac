"""Tables of the subjects: a user's own code beside ours."""
