"""`python -m gradient_flow`: the command line."""

from gradient_flow.cli.main import main

if __name__ == "__main__":
    main(prog_name="gradient-flow")
