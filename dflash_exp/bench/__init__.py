"""The product's own speed; the verb bench."""
