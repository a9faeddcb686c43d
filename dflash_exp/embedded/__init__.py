"""The target and conversations that ship with the package, and the recipe that makes them."""
