"""Code with a fault in it. The demo writes it into its folder and runs it from there, as code of a user's own."""
