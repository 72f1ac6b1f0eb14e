"""Schedules: jobs that run at times of the calendar."""
