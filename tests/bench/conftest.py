"""The benchmarks are a package of the source tree that no wheel contains."""
import sys
from pathlib import Path

# At the end: an installed zcloop is to be found before the tree's.
sys.path.append(str(Path(__file__).parents[2]))
