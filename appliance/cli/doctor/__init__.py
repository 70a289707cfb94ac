"""`roomscribe doctor`: is everything that the appliance needs there, and what to do if not."""
