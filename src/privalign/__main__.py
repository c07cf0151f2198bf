"""`python -m privalign`: the command line, where its script is not on the path."""

from privalign.cli import main

if __name__ == "__main__":
    main()
