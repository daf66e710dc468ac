"""A rank that tells its cores: `python -m perfscribe.distributed.affinity FOLDER` writes its mask there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from perfscribe.distributed import binding, ranks

if __name__ == "__main__":
    place = ranks.find(os.environ)
    Path(sys.argv[1], str(place.rank)).write_text(binding.mask(binding.granted()))
