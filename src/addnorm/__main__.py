"""`python -m addnorm`: the same as the command `addnorm`."""

from addnorm.cli.main import main

if __name__ == "__main__":
    main()
