"""Registry of what names in a command mean; it depends on no other package."""
