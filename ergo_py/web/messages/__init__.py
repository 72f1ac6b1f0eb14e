"""Messages between the web server and actors."""
