"""Sites and commits beside each other: which cells they share, what may be compared, and what cannot be told."""
