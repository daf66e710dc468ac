"""Generated and fetched data sets."""
