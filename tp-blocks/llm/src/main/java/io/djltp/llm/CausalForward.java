package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.Errors;
import io.djltp.llm.GenerationLoop.Slot;
import io.djltp.nn.attention.RotaryEmbedding;

import org.jspecify.annotations.Nullable;

import java.lang.ref.WeakReference;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;

/** A call of {@link Generator#forward}: tokens of texts whose keys and values come with them. */
final class CausalForward {

    private static final GenerationOptions GREEDY = GenerationOptions.builder().build();

    private final Decoder decoder;
    private final ModelConfig config;
    private final int texts;
    private final int count; // new tokens of each text
    private final int past; // tokens before them
    private final long[] ids;
    private final int[] padding; // places before the first token of each text
    private final NDList before; // keys and values of each layer, [texts, heads, past, d]
    private final float[][] after; // those of the new tokens, [texts, heads, count, d]
    private final float[] logits;
    private final float[] features;

    /**
     * Keys and values that a call has returned, and where they still are in the cache.
     *
     * @param arrays the arrays, as long as the caller has them
     * @param padding as in the call
     * @param slots the places of the texts
     */
    record Past(List<WeakReference<NDArray>> arrays, int[] padding, List<Slot> slots) {

        private boolean isOf(CausalForward call) {
            boolean same = Arrays.equals(padding, call.padding) && !call.before.isEmpty();
            for (int i = 0; same && i < arrays.size(); i++) {
                same = arrays.get(i).get() == call.before.get(i);
            }
            return same;
        }
    }

    /**
     * Checks the inputs.
     *
     * @throws IllegalArgumentException as {@link Generator#forward}
     */
    CausalForward(Decoder decoder, NDList inputs) {
        this.decoder = decoder;
        config = decoder.config();
        Shape shape = inputs.head().getShape();
        int arrays = 2 * config.getLayers();
        boolean fits = inputs.size() == 3 || inputs.size() == 3 + arrays;
        fits = fits && shape.dimension() == 2 && shape.size() > 0;
        fits = fits && inputs.get(2).getShape().dimension() == 2;
        texts = fits ? (int) shape.get(0) : 0;
        count = fits ? (int) shape.get(1) : 0;
        past = fits && inputs.size() > 3 ? (int) inputs.get(2).getShape().get(1) - count : 0;
        for (int i = 0; fits && i < inputs.size(); i++) {
            Shape expected = i < 2 ? shape : i == 2 ? new Shape(texts, past + count) : past(past);
            DataType type = i < 3 ? DataType.INT64 : DataType.FLOAT32;
            fits = inputs.get(i).getShape().equals(expected);
            fits = fits && inputs.get(i).getDataType() == type;
        }
        if (!fits) {
            throw Errors.argument(
                    "A causal model takes ids [B, T], positions [B, T] and a mask [B, S + T], int64,"
                            + " and optionally the keys and values of %s layers, [B, %s, S, %s] float32,"
                            + " but gets %s",
                    config.getLayers(),
                    config.getKeyValueHeads(),
                    config.getHeadDim(),
                    inputs.stream()
                            .map(each -> each.getShape() + " " + each.getDataType())
                            .toList());
        }
        long largest = Math.max(config.getVocabularySize(), config.getWidth());
        largest = Math.max(largest * shape.size(), past(past + count).size());
        Errors.check(
                largest <= Integer.MAX_VALUE - 8,
                "An output for %s texts of %s tokens has %s numbers, and an array up to 2147483639."
                        + " Use fewer texts at a time",
                texts,
                past + count,
                largest);
        ids = inputs.get(0).toLongArray();
        padding = padding(inputs.get(2).toLongArray());
        check(inputs.get(1).toLongArray());
        before = inputs.subNDList(3);
        logits = new float[texts * count * config.getVocabularySize()];
        features = new float[texts * count * config.getWidth()];
        after = new float[arrays][(int) past(count).size()];
    }

    private Shape past(int tokens) {
        return new Shape(texts, config.getKeyValueHeads(), tokens, config.getHeadDim());
    }

    private int[] padding(long[] mask) {
        int[] zeros = new int[texts];
        int all = past + count;
        for (int i = 0; i < texts; i++) {
            long[] row = Arrays.copyOfRange(mask, i * all, (i + 1) * all);
            while (zeros[i] < all && row[zeros[i]] == 0) {
                zeros[i]++;
            }
            boolean ones = Arrays.stream(row).skip(zeros[i]).allMatch(each -> each == 1);
            if (zeros[i] == all || !ones) {
                throw Errors.argument(
                        "The mask of a text must be 0 for padding, then 1 for all tokens, and that of"
                                + " text %s is %s: its next token would be that of the padding. Pad"
                                + " texts on the left, setSuffixPadding(false)",
                        i, Arrays.toString(row));
            }
        }
        return zeros;
    }

    private void check(long[] positions) {
        RotaryEmbedding rotary = config.getRotary();
        for (int i = 0; i < texts; i++) {
            int tokens = past + count - padding[i];
            Errors.check(
                    tokens <= decoder.size().length(),
                    "Text %s has %s tokens, and the generator has room for %s. Use a shorter text,"
                            + " or a maximum length of up to %s",
                    i,
                    tokens,
                    decoder.size().length(),
                    config.getMaxPositions());
            Errors.check(
                    past == 0 || rotary == null || !rotary.isScaledBy(tokens),
                    "Text %s has %s tokens, for which this model turns keys by other angles than"
                            + " those that are given. Use shorter texts, or Generator.generate",
                    i,
                    tokens);
            for (int t = skipped(i); t < count; t++) {
                int at = i * count + t;
                Errors.check(
                        positions[at] == position(i, t),
                        "The positions of a text count from 0 at its first token, which makes %s at"
                                + " [%s, %s], and not %s",
                        position(i, t),
                        i,
                        t,
                        positions[at]);
                Errors.check(
                        ids[at] >= 0 && ids[at] < config.getVocabularySize(),
                        "The id %s at [%s, %s] is none of %s",
                        ids[at],
                        i,
                        t,
                        config.getVocabularySize());
            }
        }
    }

    private int position(int text, int token) {
        return past + token - padding[text];
    }

    /** Returns how many of the new places of a text are padding. */
    private int skipped(int text) {
        return Math.max(0, padding[text] - past);
    }

    /**
     * Computes logits, keys and values, and features. Those of padding are 0.
     *
     * @param last what the last call has returned, which need not be copied into the cache
     * @param returned gets what this call returns
     */
    NDList compute(
            GenerationLoop loop,
            NDManager manager,
            @Nullable Past last,
            Consumer<@Nullable Past> returned) {
        List<Slot> slots = null;
        if (last != null && last.isOf(this)) {
            slots = loop.alone(texts, last.slots, places -> compute(places, new float[0][]));
        }
        if (slots == null) {
            float[][] given = before.stream().map(NDArray::toFloatArray).toArray(float[][]::new);
            slots = loop.alone(texts, List.of(), places -> compute(places, given));
        }
        NDList outputs = new NDList();
        outputs.add(manager.create(logits, new Shape(texts, count, config.getVocabularySize())));
        for (int i = 0; i < after.length; i++) {
            NDArray tokens = manager.create(after[i], past(count));
            if (!before.isEmpty()) {
                try (NDArray own = tokens) {
                    tokens = before.get(i).concat(own, 2);
                    tokens.attach(manager);
                }
            }
            outputs.add(tokens);
        }
        List<WeakReference<NDArray>> arrays =
                outputs.stream().skip(1).map(WeakReference::new).toList();
        returned.accept(
                slots != null && texts <= slots.size() ? new Past(arrays, padding, slots) : null);
        outputs.add(manager.create(features, new Shape(texts, count, config.getWidth())));
        return outputs;
    }

    private List<Slot> compute(List<Slot> places, float[][] given) {
        for (int i = 0; i < texts; i += places.size()) {
            compute(i, places, given);
        }
        return places;
    }

    /** Computes texts from a first on, as many as there are places. */
    private void compute(int first, List<Slot> places, float[][] given) {
        int last = Math.min(texts, first + places.size());
        int size = config.getKeyValueHeads() * config.getHeadDim(); // of a token
        for (int i = first; i < last && given.length > 0; i++) {
            int begin = Math.min(padding[i], past);
            int offset = i * size * past + begin * config.getHeadDim();
            int place = places.get(i - first).number();
            decoder.copy(place, 0, past - begin, given, offset, past, true);
        }
        int most = decoder.size().rows();
        int[] rows = new int[most];
        DecoderStep step = new DecoderStep(most);
        for (int i = first; i < last; i++) {
            for (int t = skipped(i); t < count; t++) {
                int place = places.get(i - first).number();
                rows[step.count()] = i * count + t;
                step.add(place, position(i, t), (int) ids[i * count + t], position(i, count));
                step.ask(new DecoderStep.Sampling(GREEDY, 0, 0, new int[0], true));
                if (step.isFull() || i == last - 1 && t == count - 1) {
                    take(step, rows);
                    step = new DecoderStep(most);
                }
            }
        }
        for (int i = first; i < last; i++) {
            int begin = skipped(i);
            int offset = i * size * count + begin * config.getHeadDim();
            int place = places.get(i - first).number();
            decoder.copy(place, position(i, begin), count - begin, after, offset, count, false);
        }
    }

    private void take(DecoderStep step, int[] rows) {
        DecoderStep.Choice[] choices = decoder.choose(step);
        float[] own = decoder.features(choices.length);
        int ids = config.getVocabularySize();
        int width = config.getWidth();
        for (int i = 0; i < choices.length; i++) {
            System.arraycopy(choices[i].logits(), 0, logits, rows[i] * ids, ids);
            System.arraycopy(own, i * width, features, rows[i] * width, width);
        }
    }
}
