"""The description of the API: `/openapi.json`, and the page made of it."""
