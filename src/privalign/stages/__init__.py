"""From prompts to graded candidates, in stages: collect, score, grade. Each reads a folder of Parquet shards and writes the next."""
