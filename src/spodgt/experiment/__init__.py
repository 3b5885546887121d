"""What is run: the Experiment, its TOML form, and the draw of one seed."""
