"""The light package. ``pip install ./student/engine`` installs only its subfolder."""
