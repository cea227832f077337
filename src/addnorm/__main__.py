"""`python -m addnorm`: the same command line as `addnorm`."""

from addnorm.cli.main import main

if __name__ == "__main__":
    main()
