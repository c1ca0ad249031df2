"""Where numbers come from: parameters, optimizer steps, module calls, shards; hooks hand what they see to a function."""
