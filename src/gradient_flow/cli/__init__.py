"""The commands of `gradient-flow`, one file each; imported when used."""
