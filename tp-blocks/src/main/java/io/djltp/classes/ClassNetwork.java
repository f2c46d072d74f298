package io.djltp.classes;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.initializer.NormalInitializer;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonPrimitive;
import com.google.gson.JsonSerializer;

import io.djltp.classes.ClassData.Features;
import io.djltp.classes.ClassModel.Objective;
import io.djltp.exchange.OnnxExport;
import io.djltp.internal.Errors;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Objects;

/**
 * The sizes of a classifier's network, as {@value #FILE} has them.
 *
 * @param features the kind of the features
 * @param text how texts become rows of the table, or {@code null}
 * @param inputs the rows of the table, or the dense features; 0 for texts of a body
 * @param dim the features of a row of the table
 * @param hidden the units of each linear layer
 * @param objective how the model is trained
 * @param rows the rows of the training data
 * @param body the layers below the head, or {@code null} for those of this class; the file has the
 *     name of its class
 */
record ClassNetwork(
        Features features,
        @Nullable TextFeatures text,
        int inputs,
        int dim,
        List<Integer> hidden,
        Objective objective,
        long rows,
        @Nullable ClassBody body) {

    static final String FILE = "model.json";

    /** The name of the block that scales rows to one length. */
    static final String SCALE = "scale";

    private static final float LENGTH = 16; // of the features of each row
    private static final float EPSILON = 1e-6f;
    private static final float TABLE_SIGMA = 0.25f;
    private static final float TABLE_SIGMA_OF_EACH = 0.02f; // of classes by themselves
    private static final float HEAD_SIGMA = 0.01f; // small, so that all classes start alike

    private static final String BODY = "body";
    private static final Gson GSON =
            new GsonBuilder()
                    .setPrettyPrinting()
                    .registerTypeHierarchyAdapter(
                            ClassBody.class,
                            (JsonSerializer<ClassBody>)
                                    (body, type, context) ->
                                            new JsonPrimitive(body.getClass().getName()))
                    .create();

    static ClassNetwork read(Path folder) throws IOException {
        Path file = folder.resolve(FILE);
        if (!Files.exists(file)) {
            throw new IOException(folder + " has no classifier: ClassModel.save writes " + FILE);
        }
        try {
            JsonObject json = GSON.fromJson(Files.readString(file), JsonObject.class);
            JsonElement name = json == null ? null : json.remove(BODY);
            ClassNetwork read = GSON.fromJson(json, ClassNetwork.class);
            Errors.check(
                    read != null
                            && read.features != null
                            && read.hidden != null
                            && read.objective != null
                            && (name != null
                                    || (read.text != null) == (read.features == Features.TEXT)),
                    "features, hidden or objective are missing");
            return name == null ? read : read.with(body(GSON.fromJson(name, String.class), folder));
        } catch (JsonParseException | IllegalArgumentException e) {
            throw new IOException(file + " has no sizes of a classifier: " + e.getMessage(), e);
        }
    }

    private static ClassBody body(String name, Path folder) throws IOException {
        try {
            ClassBody body =
                    Class.forName(name, false, Thread.currentThread().getContextClassLoader())
                            .asSubclass(ClassBody.class)
                            .getConstructor()
                            .newInstance();
            body.load(folder);
            return body;
        } catch (ReflectiveOperationException | ClassCastException e) {
            throw new IOException(
                    ("%s has a body of the class %s, which is not on the class path, is no"
                                    + " ClassBody, or has no public constructor without parameters"
                                    + " (%s)")
                            .formatted(folder.resolve(FILE), name, e),
                    e);
        }
    }

    private ClassNetwork with(ClassBody other) {
        return new ClassNetwork(features, text, inputs, dim, hidden, objective, rows, other);
    }

    void write(Path folder) throws IOException {
        Files.writeString(folder.resolve(FILE), GSON.toJson(this) + "\n");
        if (body != null) {
            body.save(folder);
        }
    }

    /** Closes the body with a model, and returns this. */
    ClassNetwork closedWith(Model model) {
        if (body != null) {
            model.getNDManager().attachInternal(NDManager.nextUid(), body);
        }
        return this;
    }

    /** Returns the ids of a text. */
    int[] ids(String words) {
        return body == null ? Objects.requireNonNull(text).ids(words) : body.apply(words);
    }

    Shape[] inputShapes(int batch) {
        return inputShapes(features, inputs, batch);
    }

    static Shape[] inputShapes(Features features, int inputs, int batch) {
        Shape shape = new Shape(batch, features == Features.DENSE ? inputs : 1);
        return features == Features.SPARSE ? new Shape[] {shape, shape} : new Shape[] {shape};
    }

    /** Makes the network, with a head on top. */
    SequentialBlock newBlock(ClassificationHead.Builder head, int classes) throws IOException {
        SequentialBlock network = new SequentialBlock();
        if (body != null) {
            network.add(body.newBlock());
        } else if (features == Features.DENSE) {
            network.add(newScaling());
        } else {
            // as the rates of the objectives: rows that are hardly learned must be no noise
            boolean softmax = objective == Objective.SOFTMAX;
            network.add(newTable(inputs, dim, softmax ? TABLE_SIGMA : TABLE_SIGMA_OF_EACH));
        }
        for (int units : hidden) {
            network.add(Linear.builder().setUnits(units).build()).add(Activation::relu);
        }
        ClassificationHead last = head.setUnits(classes).optBatchShardedInput(true).build();
        last.setInitializer(new NormalInitializer(HEAD_SIGMA), Parameter.Type.WEIGHT);
        return network.add(newScaling()).add(last);
    }

    /** Makes the layers of texts below the head, for softmax. */
    static SequentialBlock newTextBody(int rows, int dim) {
        return new SequentialBlock().add(newTable(rows, dim, TABLE_SIGMA)).add(newScaling());
    }

    private static EmbeddingBag newTable(int rows, int dim, float sigma) {
        EmbeddingBag table = new EmbeddingBag(rows, dim);
        table.setInitializer(new NormalInitializer(sigma), Parameter.Type.WEIGHT);
        return table;
    }

    /** Scales each row to one length. */
    private static LambdaBlock newScaling() {
        return new LambdaBlock(
                inputs -> {
                    NDArray rows = inputs.singletonOrThrow();
                    NDArray length = rows.square().sum(new int[] {1}, true).add(EPSILON).sqrt();
                    // not mul(number): DJL keeps a number in Java memory that may be gone when the
                    // gradient needs it
                    NDArray scale = length.zerosLike().add(LENGTH);
                    return new NDList(rows.div(length).mul(scale));
                },
                SCALE);
    }

    /** Adds what {@link #newScaling} computes to a graph of ONNX. */
    static String scale(OnnxExport.Graph graph, String x) {
        String squares = graph.add("ReduceSum", graph.add("Mul", x, x), graph.integers(1));
        String sum = graph.add("Add", squares, graph.number(EPSILON));
        return graph.add("Mul", graph.add("Div", x, graph.add("Sqrt", sum)), graph.number(LENGTH));
    }
}
