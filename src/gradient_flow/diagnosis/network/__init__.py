"""Rules on what was seen inside a network, one file per fault, and the record that they are given."""
