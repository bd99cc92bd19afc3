"""`python -m laconic` is `laconic`; this form is what `torchrun -m laconic` needs."""

from laconic.cli.main import main

# A spawned rank imports this module again under another name, and must not run the command again.
if __name__ == "__main__":
    main()
