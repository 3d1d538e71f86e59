"""HTML that comes from elsewhere: cleaned, and framed for a page."""
