"""Helpers of the Makefile: they run the installed `orbitmq` as a user would. Not part of the package."""
