"""Where numbers come from: parameters, optimizer steps, module calls, shards. Hooks hand on what they see."""
