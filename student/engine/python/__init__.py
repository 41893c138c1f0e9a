"""The light package, whose folder below is installed alone by ``pip install ./student/engine``."""
