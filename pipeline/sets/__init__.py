"""The logit set: a folder with one teacher's signals over one data source."""
