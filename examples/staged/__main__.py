"""CSV, hash bucket, embedding lookup: the program of DeepRec's page on tf.staged, line by line.

What is staged is what stands before the cut: reading, batching, decoding. The rest runs in the step, as there.

    python examples/staged [FILE.csv]
"""

import csv
import pathlib
import sys
import tempfile
import zlib

import engine

BUCKETS, DIMENSION, BATCH = 10, 3, 2

# What the page calls 1.txt: two columns.
SAMPLE = "".join(f"key-{i},value-{i}\n" for i in range(10))


def read_lines(path):
    """tf.TextLineReader and tf.train.string_input_producer: the lines of the file."""
    with open(path, newline="") as file:
        yield from file


def batches(lines, size):
    """tf.train.batch."""
    batch = []
    for line in lines:
        batch.append(line)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def decode_csv(batch):
    """tf.decode_csv with two columns of strings; a row that does not fit is an error."""
    rows = list(csv.reader(batch))
    for row in rows:
        if len(row) != 2:
            raise ValueError(f"2 columns are expected, and there are {len(row)} in {row}")
    return [[row[0] for row in rows], [row[1] for row in rows]]


def string_to_hash_bucket(strings, num_buckets):
    """tf.string_to_hash_bucket; any hash will do that is the same in every process."""
    return [zlib.crc32(text.encode()) % num_buckets for text in strings]


def embedding_lookup(table, ids):
    """tf.nn.embedding_lookup."""
    return [table[i] for i in ids]


@engine.op
def step(table, xx):
    """What stays in the step: hash, look up, concatenate."""
    ids = string_to_hash_bucket(xx[0], num_buckets=BUCKETS)
    rows = embedding_lookup(table, ids)
    xx1 = xx[1] + ["xxx"]
    return [[str(x) for row in rows for x in row], xx1, xx1]


def targets(path, **options):
    """The values of `target`, one a step."""
    # v0, v1 = tf.decode_csv(tf.train.batch(...)); xx = tf.staged([v0, v1])
    xx = engine.data.staged(decode_csv, feed_dict={"batch": batches(read_lines(path), BATCH)}, **options)
    table = engine.value([[1.0] * DIMENSION for _ in range(100)], name="var")
    with engine.data.make_prefetch_hook():  # sess = tf.train.MonitoredTrainingSession(hooks=[tf.make_prefetch_hook()])
        for item in xx:
            yield step(table, item).get()  # sess.run([target])


def main():
    if len(sys.argv) > 1:
        path = pathlib.Path(sys.argv[1])
    else:
        path = pathlib.Path(tempfile.mkdtemp()) / "1.txt"
        path.write_text(SAMPLE)
    for target in targets(path, capacity=4, num_threads=2, name="read"):
        print(target)


if __name__ == "__main__":
    main()
