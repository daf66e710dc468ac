"""A rank that tells its cores: `python -m perfscribe.parallel.affinity FOLDER` writes the mask into FOLDER/<rank>."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from perfscribe.parallel import binding, ranks

if __name__ == "__main__":
    place = ranks.find(os.environ)
    Path(sys.argv[1], str(place.rank)).write_text(binding.mask(binding.granted()))
