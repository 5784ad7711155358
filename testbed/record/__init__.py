"""Records what goes on during a run over a simulated fabric, as Parquet files. docs/recording.md has the schema."""
