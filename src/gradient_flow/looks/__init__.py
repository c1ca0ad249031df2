"""Looking inside a model in training: what hooks see between modules, in which steps, at what cost."""
