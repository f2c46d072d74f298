package io.djltp.spark.ml;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.util.JsonUtils;

import io.djltp.head.Margin;
import io.djltp.nn.ClassificationHead;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import java.io.Serializable;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * How a classifier's network is built, the same on all executors.
 *
 * @param width the length of the features column
 * @param ids whether the features are integers
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
 */
record NetworkPlan(
        int width,
        boolean ids,
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
        List<Double> margin)
        implements Serializable {

    private static final int MARGIN = 4; // numbers

    String toJson() {
        return JsonUtils.GSON.toJson(this);
    }

    static NetworkPlan ofJson(String json) {
        return JsonUtils.GSON.fromJson(json, NetworkPlan.class);
    }

    /** Returns the network, without values: the body's blocks and the head, which is the last. */
    SequentialBlock newNetwork() {
        SequentialBlock network = new SequentialBlock();
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

    /** Returns the shape of the network's input for so many rows. */
    Shape inputShape(long rows) {
        return new Shape(rows, width);
    }

    DataType inputType() {
        return ids ? DataType.INT32 : DataType.FLOAT32;
    }
}
