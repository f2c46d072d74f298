package io.djltp.classes;

import ai.djl.modality.Classifications;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;

import io.djltp.classes.ClassData.Features;
import io.djltp.classes.ClassData.Row;
import io.djltp.classes.ClassModel.Objective;
import io.djltp.head.TopClasses;
import io.djltp.internal.Errors;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.Function;

/**
 * Texts or features in, the best classes out, a batch at a time.
 *
 * @param network the sizes of the network
 * @param names the names of the classes
 * @param reader returns the features of an input
 * @param search returns the best classes of what the network computes
 * @param <I> the input
 */
record ClassTranslator<I>(
        ClassNetwork network,
        ClassNames names,
        Function<I, Row> reader,
        Function<NDArray, TopClasses> search)
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
        return new ClassTranslator<>(network, names, ClassTranslator::row, search);
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
        List<int[]> ids = new ArrayList<>();
        List<float[]> values = new ArrayList<>();
        for (I input : inputs) {
            Row row = reader.apply(input);
            if (network.features() != Features.DENSE) {
                ids.add(ids(row));
            }
            if (network.features() != Features.TEXT) {
                values.add(values(row));
            }
        }
        return ClassDataset.arrays(
                context.getNDManager(), network.features(), network.inputs(), ids, values);
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
                "A row needs as many values as sparse features");
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
                all.add(new Classifications(labels, shares));
            }
            return all;
        }
    }
}
