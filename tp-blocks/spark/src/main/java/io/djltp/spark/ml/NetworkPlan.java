package io.djltp.spark.ml;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.util.JsonUtils;

import io.djltp.head.Margin;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * How a classifier's network is built, the same on all executors.
 *
 * @param width the length of the features column
 * @param ids whether the features are integers
 * @param embedding the features of each row of the table that sparse vectors sum, or 0 for none
 * @param classes the number of classes
 * @param hidden the units of hidden layers, with a ReLU behind each
 * @param body the class of a {@link BodyFactory}, or empty
 * @param arguments its arguments, {@code name=value}
 * @param bias whether the head has a bias
 * @param precision the arithmetic of the head
 * @param sampleShare the share of the classes that a step computes with
 * @param seed the seed by which classes are drawn
 * @param headMemory the bytes for logits on each rank, or 0 for the head's own default
 * @param headSigma the standard deviation of the head's first weights, or 0 for DJL's default
 * @param margin scale, m1, m2 and m3 of a margin, or nothing
 * @param oneVsAll whether each class has a loss of its own, and not all of them one softmax
 */
record NetworkPlan(
        int width,
        boolean ids,
        int embedding,
        int classes,
        List<Integer> hidden,
        String body,
        List<String> arguments,
        boolean bias,
        String precision,
        float sampleShare,
        long seed,
        long headMemory,
        float headSigma,
        List<Double> margin,
        boolean oneVsAll)
        implements Serializable {

    private static final int MARGIN = 4; // numbers
    private static final float TABLE_SIGMA = 0.25f;

    String toJson() {
        return JsonUtils.GSON.toJson(this);
    }

    static NetworkPlan ofJson(String json) {
        return JsonUtils.GSON.fromJson(json, NetworkPlan.class);
    }

    /** Returns the network, without values: the body's blocks and the head, which is the last. */
    SequentialBlock newNetwork() {
        SequentialBlock network = new SequentialBlock();
        if (isSparse()) {
            EmbeddingBag table = new EmbeddingBag(width + 1L, embedding);
            table.setInitializer(new NormalInitializer(TABLE_SIGMA), Parameter.Type.WEIGHT);
            network.add(table);
        }
        if (!body.isEmpty()) {
            network.add(newBody());
        }
        for (int units : hidden) {
            network.add(Linear.builder().setUnits(units).build()).add(Activation::relu);
        }
        return network.add(newHead());
    }

    private ClassificationHead newHead() {
        ClassificationHead.Builder head =
                ClassificationHead.builder()
                        .setUnits(classes)
                        .optBias(bias)
                        .optBatchShardedInput(true)
                        .optPrecision(Precision.of(precision.toLowerCase(Locale.ROOT)))
                        .optSampleShare(sampleShare)
                        .optSampleSeed(seed)
                        .optMargin(newMargin());
        if (headMemory > 0) {
            head.optFusedMemory(headMemory);
        }
        ClassificationHead built = head.build();
        if (oneVsAll) { // from 0 it would take long to learn that nearly all are no labels
            built.setInitializer(
                    new ConstantInitializer((float) -Math.log(classes)), Parameter.Type.BIAS);
        }
        if (headSigma > 0) {
            built.setInitializer(new NormalInitializer(headSigma), Parameter.Type.WEIGHT);
        }
        return built;
    }

    private @Nullable Margin newMargin() {
        if (margin.isEmpty()) {
            return null;
        }
        if (margin.size() != MARGIN) {
            throw new IllegalArgumentException(
                    "A margin is scale, m1, m2 and m3, not " + margin + ": set the four numbers");
        }
        return new Margin(
                margin.get(0).floatValue(),
                margin.get(1).floatValue(),
                margin.get(2).floatValue(),
                margin.get(3).floatValue());
    }

    private Block newBody() {
        Map<String, String> named = new HashMap<>();
        for (String argument : arguments) {
            int equals = argument.indexOf('=');
            if (equals < 1) {
                throw new IllegalArgumentException(
                        "The argument '" + argument + "' of the body is not name=value");
            }
            named.put(argument.substring(0, equals), argument.substring(equals + 1));
        }
        try {
            // that of the jars that were given to Spark
            ClassLoader loader = Thread.currentThread().getContextClassLoader();
            Object factory =
                    Class.forName(body, true, loader).getDeclaredConstructor().newInstance();
            return ((BodyFactory) factory).newBody(named);
        } catch (ReflectiveOperationException | ClassCastException e) {
            throw new IllegalArgumentException(
                    ("The body %s cannot be made (%s): name a public class that implements"
                                    + " BodyFactory, has a constructor without parameters and is in"
                                    + " a jar of the application")
                            .formatted(body, e),
                    e);
        }
    }

    /** Returns whether the features are the places and the values of what is not zero. */
    boolean isSparse() {
        return embedding > 0;
    }

    /** Returns the shapes of the network's inputs for so many rows, of sparse ones with a value. */
    Shape[] inputShapes(long rows) {
        Shape shape = new Shape(rows, isSparse() ? 1 : width);
        return isSparse() ? new Shape[] {shape, shape} : new Shape[] {shape};
    }

    /**
     * Makes the network's inputs of records, see {@link Columns}, which stand at their labels then.
     * Sparse rows have as many places as the longest of these.
     *
     * @param manager the manager of the inputs
     * @param records the records of some rows
     * @param from the number of the first of them
     * @param rows the number of rows: zeros where there is no record
     */
    NDList newInputs(NDManager manager, List<ByteBuffer> records, int from, long rows) {
        int most = isSparse() ? 1 : width;
        for (ByteBuffer record : records) {
            most = Math.max(most, record.getInt(0));
        }
        long bytes = rows * most * Float.BYTES;
        if (bytes > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(
                    ("A batch of %d rows, of which the longest has %d values, has %d bytes, more"
                                    + " than 2 GiB: set a smaller batch (setBatchSize)")
                            .formatted(rows, most, bytes));
        }
        int[] lengths = records.stream().mapToInt(ByteBuffer::getInt).toArray();
        NDList inputs = new NDList();
        for (int parts = isSparse() ? 2 : 1; parts > 0; parts--) {
            boolean numbers = ids || parts == 2;
            ByteBuffer bits = ByteBuffer.allocateDirect((int) bytes);
            bits.order(ByteOrder.nativeOrder());
            for (int i = 0; i < lengths.length; i++) {
                bits.position((from + i) * most * Integer.BYTES);
                for (int j = 0; j < lengths[i]; j++) {
                    bits.putInt(records.get(i).getInt());
                }
            }
            DataType type = numbers ? DataType.INT32 : DataType.FLOAT32;
            inputs.add(manager.create(bits.clear(), new Shape(rows, most), type));
        }
        return inputs;
    }
}
