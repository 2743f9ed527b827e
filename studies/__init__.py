"""Studies that use the package as anyone may; nothing in the package knows them."""
