"""The package's version; equal to the daemon's and the build's."""

__version__ = "0.1.0"
