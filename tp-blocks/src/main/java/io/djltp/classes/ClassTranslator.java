package io.djltp.classes;

import ai.djl.modality.Classifications;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.BytesSupplier;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;
import ai.djl.util.JsonUtils;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonPrimitive;
import com.google.gson.Strictness;
import com.google.gson.stream.JsonReader;

import io.djltp.classes.ClassData.Features;
import io.djltp.classes.ClassData.Row;
import io.djltp.classes.ClassModel.Objective;
import io.djltp.head.TopClasses;
import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.StringReader;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;

/**
 * Texts or features in, the best classes out, a batch at a time.
 *
 * @param network the sizes of the network
 * @param names the names of the classes
 * @param search returns the best classes of what the network computes
 * @param <I> the input
 */
record ClassTranslator<I>(
        ClassNetwork network, ClassNames names, Function<NDArray, TopClasses> search)
        implements Translator<I, Classifications> {

    static <I> ClassTranslator<I> of(
            ClassNetwork network,
            ClassNames names,
            Class<I> input,
            Function<NDArray, TopClasses> search) {
        Class<?> usual =
                switch (network.features()) {
                    case TEXT -> String.class;
                    case SPARSE -> Row.class;
                    case DENSE -> float[].class;
                };
        Errors.check(
                input == Row.class || input == usual,
                "A classifier of %s features needs inputs of %s, not %s",
                network.features(),
                usual.getSimpleName(),
                input.getSimpleName());
        return new ClassTranslator<>(network, names, search);
    }

    private static Row row(Object input) {
        if (input instanceof Row row) {
            return row;
        }
        return input instanceof String text ? Row.ofText(text) : Row.ofVector((float[]) input);
    }

    /** {@inheritDoc} */
    @Override
    public NDList processInput(TranslatorContext context, I input) {
        return batchProcessInput(context, List.of(input));
    }

    /** {@inheritDoc} */
    @Override
    public NDList batchProcessInput(TranslatorContext context, List<I> inputs) {
        return arrays(context, inputs.stream().map(input -> featured(row(input))).toList());
    }

    /** Returns the arrays of rows of {@link #featured}. */
    private NDList arrays(TranslatorContext context, List<Row> rows) {
        List<int[]> ids = rows.stream().map(Row::ids).toList();
        List<float[]> values = rows.stream().map(Row::values).toList();
        return ClassDataset.arrays(
                context.getNDManager(), network.features(), network.inputs(), ids, values);
    }

    /** Returns the features of a row as the network takes them. */
    private Row featured(Row row) {
        int[] ids = network.features() == Features.DENSE ? null : ids(row);
        float[] values = network.features() == Features.TEXT ? null : values(row);
        return new Row(0, null, ids, values, new int[0]);
    }

    private int[] ids(Row row) {
        if (network.features() == Features.TEXT) {
            Errors.check(row.text() != null, "A row without a text has no features");
            return network.ids(Objects.requireNonNull(row.text()));
        }
        int[] ids = row.ids();
        float[] values = row.values();
        Errors.check(
                ids != null && values != null && ids.length == values.length,
                "A row needs sparse features: ids and as many values");
        for (int id : Objects.requireNonNull(ids)) {
            Errors.check(
                    id >= 0 && id < network.inputs() - 1,
                    "The features are 0 to %s, and a row has %s",
                    network.inputs() - 2,
                    id);
        }
        return ids;
    }

    private float[] values(Row row) {
        float[] values = row.values();
        Errors.check(
                network.features() == Features.SPARSE
                        || values != null && values.length == network.inputs(),
                "A row needs %s features, not %s",
                network.inputs(),
                values == null ? 0 : values.length);
        return Objects.requireNonNull(values);
    }

    /** {@inheritDoc} */
    @Override
    public Classifications processOutput(TranslatorContext context, NDList output) {
        return batchProcessOutput(context, output).get(0);
    }

    /** {@inheritDoc} */
    @Override
    public List<Classifications> batchProcessOutput(TranslatorContext context, NDList output) {
        try (TopClasses top = search.apply(output.singletonOrThrow())) {
            long[] classes = top.classes().toLongArray();
            boolean softmax = network.objective() == Objective.SOFTMAX;
            float[] scores =
                    (softmax ? Objects.requireNonNull(top.logProbabilities()) : top.logits())
                            .toFloatArray();
            int rows = (int) top.classes().getShape().get(0);
            int k = classes.length / Math.max(1, rows);
            List<Classifications> all = new ArrayList<>();
            for (int row = 0; row < rows; row++) {
                List<String> labels = new ArrayList<>();
                List<Double> shares = new ArrayList<>();
                for (int i = row * k; i < (row + 1) * k; i++) {
                    labels.add(names.get((int) classes[i]));
                    shares.add(network.objective().score(scores[i]));
                }
                Classifications best = new Classifications(labels, shares);
                best.setTopK(k);
                all.add(best);
            }
            return all;
        }
    }

    /**
     * Takes the requests of DJL Serving: JSON with {@code inputs}, one row or a list, or a text.
     * What DJL Serving puts into a batch is computed together. A request that cannot be read is
     * answered with status 400.
     *
     * @param rows takes the rows
     */
    record Requests(ClassTranslator<Row> rows) implements Translator<Input, Output> {

        private static final String ASKED = "asked";

        /**
         * A request.
         *
         * @param rows the features of its rows, none if they cannot be read
         * @param one whether it is a row, and no list of rows
         * @param error why they cannot be read, or {@code null}
         */
        private record Asked(List<Row> rows, boolean one, @Nullable String error) {}

        private Asked asked(Input input) {
            Features features = rows.network.features();
            try {
                BytesSupplier data = input.getData();
                String text = data == null ? "" : data.getAsString();
                String type = input.getProperty("Content-Type", "");
                boolean plain = features == Features.TEXT && !type.startsWith("application/json");
                JsonElement json = plain ? new JsonPrimitive(text) : parse(text);
                if (json instanceof JsonObject object && object.has("inputs")) {
                    json = object.remove("inputs");
                    Errors.check(
                            object.isEmpty(),
                            "The fields %s are not known. Use inputs; the argument topk of the"
                                    + " model is the number of classes",
                            object.keySet());
                }
                List<Row> own = Row.ofJson(features, json).stream().map(rows::featured).toList();
                return new Asked(own, Row.isOne(features, json), null);
            } catch (IllegalArgumentException e) {
                return new Asked(List.of(), false, "" + e.getMessage());
            }
        }

        private static JsonElement parse(String text) {
            JsonReader reader = new JsonReader(new StringReader(text));
            reader.setStrictness(Strictness.STRICT);
            try {
                JsonElement json = JsonUtils.GSON.getAdapter(JsonElement.class).read(reader);
                reader.peek(); // fails if there is anything but spaces
                return json;
            } catch (IOException | JsonParseException | NumberFormatException e) {
                throw Errors.argument("The body is not JSON at %s", reader.getPath());
            }
        }

        /** {@inheritDoc} */
        @Override
        public NDList processInput(TranslatorContext context, Input input) {
            return batchProcessInput(context, List.of(input));
        }

        /** {@inheritDoc} */
        @Override
        public NDList batchProcessInput(TranslatorContext context, List<Input> inputs) {
            List<Asked> asked = inputs.stream().map(this::asked).toList();
            context.setAttachment(ASKED, asked);
            List<Row> all = asked.stream().flatMap(each -> each.rows.stream()).toList();
            Errors.check(!all.isEmpty(), "%s", asked.get(0).error); // is status 400
            return rows.arrays(context, all);
        }

        /** {@inheritDoc} */
        @Override
        public Output processOutput(TranslatorContext context, NDList output) {
            return batchProcessOutput(context, output).get(0);
        }

        /** {@inheritDoc} */
        @Override
        @SuppressWarnings("unchecked")
        public List<Output> batchProcessOutput(TranslatorContext context, NDList output) {
            Iterator<Classifications> best = rows.batchProcessOutput(context, output).iterator();
            List<Output> outputs = new ArrayList<>();
            for (Asked each : (List<Asked>) context.getAttachment(ASKED)) {
                boolean bad = each.error != null;
                Output answer = bad ? new Output(400, "Bad Request") : new Output();
                List<Classifications> own = each.rows.stream().map(row -> best.next()).toList();
                answer.addProperty("Content-Type", "application/json");
                Object content = bad ? Map.of("message", each.error) : each.one ? own.get(0) : own;
                answer.add(BytesSupplier.wrapAsJson(content));
                outputs.add(answer);
            }
            return outputs;
        }
    }
}
