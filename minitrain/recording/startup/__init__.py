"""The folder that ``minitrain record`` puts before others on PYTHONPATH."""
