"""The program of DeepRec's page on SmartStage, line by line: the program does not say where its step is cut.

    python examples/staged/smart.py [FILE.csv]

It runs twice: with a dataset and SmartStage alone, and with a step whose first part is staged by hand (``engine.data.staged``)
and from which SmartStage goes on. Both print what the page's program prints.
"""

import importlib.util
import pathlib
import sys
import tempfile

import engine

_spec = importlib.util.spec_from_file_location("by_hand", pathlib.Path(__file__).with_name("__main__.py"))
by_hand = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(by_hand)

# tf.io.decode_csv, tf.string_to_hash_bucket, tf.nn.embedding_lookup, tf.concat, tf.as_string
decode_csv = engine.op(outputs=2)(by_hand.decode_csv)
string_to_hash_bucket = engine.op(by_hand.string_to_hash_bucket)
embedding_lookup = engine.op(by_hand.embedding_lookup)


@engine.op
def concat(strings):
    """tf.concat([xx[1], ['xxx']], axis=0)."""
    return [*strings, "xxx"]


@engine.op
def make_target(rows, strings):
    """tf.concat([tf.as_string(xx[0]), [xx[1], xx[1]]], 0)."""
    return [[str(x) for row in rows for x in row], strings, strings]


class Program:
    def __init__(self):
        # var = tf.get_variable("var", shape=[100, 3], initializer=tf.ones_initializer())
        self.var = engine.value([[1.0] * by_hand.DIMENSION for _ in range(100)], name="var")

    def target(self, *xx):
        """What follows the cut."""
        xx = list(xx)
        xx[0] = string_to_hash_bucket(xx[0], num_buckets=by_hand.BUCKETS)
        xx[0] = embedding_lookup(self.var, xx[0])
        xx[1] = concat(xx[1])
        target = make_target(*xx)
        engine.data.mark_target_node([target])  # tf.train.mark_target_node([target])
        return target

    def decode_and_target(self, batch):
        return self.target(*decode_csv(batch))  # dataset.map(parse_csv); xx = list(iterator.get_next())


def automatic(path, **options):
    """The first program of the page: a dataset, and SmartStage."""
    # dataset = tf.data.TextLineDataset(path).batch(2)
    dataset = by_hand.batches(by_hand.read_lines(path), by_hand.BATCH)
    # config.graph_options.optimizer_options.do_smart_stage = True
    engine.set_policy("threaded", smart_stage=True)  # which it is unless somebody has turned it off
    # smart_stage_options = tf.SmartStageOptions(capacity=1, num_threads=1)
    smart_stage_options = engine.data.SmartStageOptions(capacity=1, num_threads=1)
    return engine.data.smart_stage(Program().decode_and_target, dataset, smart_stage_options, **options)


def extended(path, **options):
    """The second: xx = tf.staged([v0, v1]) stands in the graph, and SmartStage goes on from there."""
    batches = by_hand.batches(by_hand.read_lines(path), by_hand.BATCH)
    xx = engine.data.staged(by_hand.decode_csv, feed_dict={"batch": batches}, name="by-hand")
    return engine.data.smart_stage(Program().target, xx, **options)


def main():
    if len(sys.argv) > 1:
        path = pathlib.Path(sys.argv[1])
    else:
        path = pathlib.Path(tempfile.mkdtemp()) / "test_data.csv"
        path.write_text(by_hand.SAMPLE)
    for program in (automatic, extended):
        # A file this short has no steps to spare: all that may run ahead does, from the first step on.
        steps = program(path, profile_steps=0, guard_steps=0, name=program.__name__)
        with engine.data.make_prefetch_hook():  # MonitoredTrainingSession(config=config, hooks=[tf.make_prefetch_hook()])
            for target in steps:
                print(target.get())  # print(sess.run([target]))
        print(steps.explain(), end="")


if __name__ == "__main__":
    main()
