package io.djltp.spark.ml;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Activation;

import io.djltp.head.TopClasses;
import io.djltp.internal.torch.Autograd;

import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;

import scala.collection.mutable.ArraySeq$;
import scala.jdk.javaapi.CollectionConverters;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/** Adds the best classes to the rows of a partition, some rows at a time. */
final class RowClassifier implements MapPartitionsFunction<Row, Row> {

    private static final long serialVersionUID = 1L;

    private static final int ROWS = 64; // the head reads its weight once for so many

    private final Broadcast<SharedNetwork> network;
    private final Columns columns;
    private final int k;
    private final boolean predicts; // writes the best class
    private final boolean lists; // writes the k best ones

    RowClassifier(
            Broadcast<SharedNetwork> network,
            Columns columns,
            int k,
            boolean predicts,
            boolean lists) {
        this.network = network;
        this.columns = columns;
        this.k = k;
        this.predicts = predicts;
        this.lists = lists;
    }

    /** {@inheritDoc} */
    @Override
    public Iterator<Row> call(Iterator<Row> rows) {
        return CollectionConverters.asJava(
                CollectionConverters.asScala(rows)
                        .<Row>grouped(ROWS)
                        .flatMap(
                                some ->
                                        CollectionConverters.asScala(
                                                classify(CollectionConverters.asJava(some)))));
    }

    @SuppressWarnings("try") // a mode is used by being open
    private List<Row> classify(List<Row> rows) {
        SharedNetwork shared = network.value();
        SharedNetwork.LoadedNetwork loaded = shared.loaded();
        NetworkPlan plan = loaded.plan();
        Autograd.setThreads(Math.max(1, TaskContext.get().cpus()));
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
                Autograd.GradMode mode = Autograd.gradMode(false);
                TopClasses best =
                        loaded.classify(
                                manager,
                                plan.newInputs(
                                        manager, records(rows, plan.width()), 0, rows.size()),
                                k)) {
            long[] classes = best.classes().toLongArray();
            NDArray scores =
                    plan.oneVsAll() ? Activation.sigmoid(best.logits()) : best.probabilities();
            float[] probabilities = scores.toFloatArray();
            List<Row> all = new ArrayList<>(rows.size());
            for (int i = 0; i < rows.size(); i++) {
                Row[] top = new Row[k];
                for (int j = 0; j < k; j++) {
                    long label = classes[i * k + j];
                    top[j] =
                            RowFactory.create(
                                    label, shared.nameOf(label), probabilities[i * k + j]);
                }
                all.add(with(rows.get(i), (double) classes[i * k], top));
            }
            return all;
        }
    }

    private List<ByteBuffer> records(List<Row> rows, int width) {
        List<ByteBuffer> records = new ArrayList<>(rows.size());
        for (Row row : rows) {
            int own = columns.width(row);
            String wrong = own < 0 ? "it has no features" : null;
            if (own >= 0 && own != width) {
                wrong = "it has " + own + " features, the network takes " + width;
            }
            if (wrong == null) {
                ByteBuffer record = columns.newRecord(row);
                wrong = columns.read(row, record);
                records.add(record.flip());
            }
            if (wrong != null) {
                throw new IllegalArgumentException("A row is bad: %s: %s".formatted(wrong, row));
            }
        }
        return records;
    }

    private Row with(Row row, double prediction, Row[] top) {
        List<Object> all = new ArrayList<>(row.size() + 2);
        for (int i = 0; i < row.size(); i++) {
            all.add(row.get(i));
        }
        if (predicts) {
            all.add(prediction);
        }
        if (lists) {
            all.add(ArraySeq$.MODULE$.make(top)); // what Spark takes for an array
        }
        return RowFactory.create(all.toArray());
    }
}
