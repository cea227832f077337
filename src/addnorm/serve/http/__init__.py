"""The web server: OpenAI's API and the endpoints of the tasks, without torch."""
