"""A few steps of our own around a model: what hooks see between modules becomes a record that rules can judge."""
