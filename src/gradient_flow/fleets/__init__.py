"""Many runs at once: a digest of each, kept in Parquet, asked with SQL. Without torch."""
