"""`python -m mechassay`."""

from mechassay.cli.main import main

if __name__ == "__main__":
    main()
