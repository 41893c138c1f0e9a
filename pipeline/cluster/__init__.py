"""More than one machine: the number of this job among those of a launcher, and workers on a Ray cluster.

Independent of sets.
"""
