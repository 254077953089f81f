"""The console: pages for the people who look after the service."""
