"""Runs while they run: a page on this machine that reads their folders and changes nothing."""
