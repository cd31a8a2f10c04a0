"""The same work in fedrift and in its peers, side by side: see run.py."""
