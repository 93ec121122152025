"""zcloop with other libraries.  Nothing of it is imported by ``import zcloop``."""
