"""Where other people's frameworks and loggers meet this one."""
