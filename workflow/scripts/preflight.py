"""Test the links before a training: exit status 0, 44 (no figure) or 46 (below the threshold). See --help."""

import sys

from perfscribe.verbs import preflight

if __name__ == "__main__":
    sys.exit(preflight.main(sys.argv[1:]))
