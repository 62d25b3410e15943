"""Reads a Parquet or CSV file through pyarrow, ahead of the step. pyarrow is optional.

python examples/staged/parquet.py FILE
"""

import sys

import engine


def record_batches(path, rows=1024):
    """The file in batches of `rows`, as pyarrow reads them: it lets go of the GIL meanwhile."""
    if str(path).endswith(".parquet"):
        import pyarrow.parquet

        yield from pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=rows)
    else:
        import pyarrow.csv

        yield from pyarrow.csv.open_csv(path)


def staged_batches(path, rows=1024, **options):
    """Dicts of NumPy columns, converted on the stage's threads."""
    return engine.data.staged(
        lambda batch: {
            name: column.to_numpy(zero_copy_only=False) for name, column in zip(batch.schema.names, batch)
        },
        feed_dict={"batch": record_batches(path, rows)},
        **{"capacity": 4, "num_threads": 2, **options},
    )


if __name__ == "__main__":
    for columns in staged_batches(sys.argv[1]):
        print({name: len(column) for name, column in columns.items()})
